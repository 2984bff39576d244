"""Tensors that do not lie in the host's memory, on a device made for tests or on a real one."""
