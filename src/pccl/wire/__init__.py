"""Bytes to messages and back: what every connection starts with, where a message ends, and which bytes are none.

Owns framing, limits on what is read, the protocol version and the encoding of `core.messages`. Does no input or output
and must not know sockets, time or why a message is sent.
"""
