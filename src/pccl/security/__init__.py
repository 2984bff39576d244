"""What a connection must prove, and how its bytes are kept from others: secrets, tokens, certificates, TLS.

Owns every key and every proof. Must not know what the messages behind a proof say.
"""
