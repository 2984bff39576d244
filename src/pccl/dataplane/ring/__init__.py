"""Collectives on sockets: segments, arithmetic, codes, the reference ring."""
