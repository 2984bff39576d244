"""A tensor of a device that no machine has: what torch's tensors can do as far as we ask it of them."""

import types

import numpy as np


class Storage:
    """What a tensor's memory is kept by."""

    def __init__(self, values):
        self.values = values

    def nbytes(self):
        return self.values.nbytes


class HostTensor:
    """Its copy on the CPU."""

    def __init__(self, values, pinned=False):
        self.values, self.pinned = values, pinned
        self.device = types.SimpleNamespace(type="cpu")
        self.dtype = f"torch.{values.dtype.name}"

    def data_ptr(self):
        return self.values.ctypes.data

    def untyped_storage(self):
        return Storage(self.values)

    def storage_offset(self):
        return 0

    def element_size(self):
        return self.values.itemsize

    def numel(self):
        return self.values.size

    def is_contiguous(self):
        return True

    def copy_(self, other):
        self.values[...] = other.values


class DeviceTensor(HostTensor):
    """Refuses to tell its address: whoever reads it directly would read nonsense."""

    def __init__(self, values, pins=True):
        super().__init__(np.array(values, np.float32))
        self.device = types.SimpleNamespace(type="fake")
        self.shape = self.values.shape
        self._pins = pins

    def data_ptr(self):
        raise AssertionError("this memory is not the CPU's")

    def detach(self):
        return self

    def new_empty(self, shape, device, pin_memory=False):
        assert device == "cpu"
        if pin_memory and not self._pins:
            raise RuntimeError("Cannot access accelerator device when none is available.")
        return HostTensor(np.empty(shape, self.values.dtype), pin_memory)
