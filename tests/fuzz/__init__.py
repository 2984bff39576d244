"""Bytes of strangers and of peers that want to do harm, in front of everything that reads bytes."""
