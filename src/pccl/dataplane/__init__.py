"""Moving bytes: segments, arithmetic and lanes that were handed over. Must not know peers, votes or retries."""
