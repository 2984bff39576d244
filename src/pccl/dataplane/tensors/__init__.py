"""Memory that a user hands over: buffers, DLPack, devices."""
