"""Memory that other libraries lend by DLPack, read from the capsule itself: no library is needed for it.

Owns the layout of the two structures that DLPack defines, the one of before 1.0 and the versioned one. Nothing is
consumed: while the capsule is kept, its memory is lent to us, and when it goes, it calls the lender's deleter itself.
Must not know peers, lanes or what is computed.
"""

import ctypes
from typing import Any

from msgspec import Struct

HOST_DEVICES = {1: "CPU", 3: "CUDA host", 11: "ROCm host"}
"""DLPack's numbers of devices whose memory is the process's own: plain, and pinned for an accelerator."""

DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}
"""Names for errors; others are told by number."""

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY = 1
_NEWEST = (1, 0)
"""The newest version whose structure we know; later 1.x ones only add to its flags."""


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Lent(Struct, frozen=True):
    """What a capsule says about the memory behind it."""

    address: int
    count: int
    element: str
    """The name of its elements' type, such as `float32`."""
    contiguous: bool
    writable: bool
    capsule: Any
    """Keeps the memory."""


class NotLent(Exception):
    """The memory cannot be had this way; the sentence says why."""


def lent(array: Any) -> Lent:
    """The memory behind an object with `__dlpack__`, if it is the process's own. Raises `NotLent`."""
    device = int(array.__dlpack_device__()[0])
    if device not in HOST_DEVICES:
        where = DEVICES.get(device, f"number {device} of DLPack")
        raise NotLent(f"it lies on a device ({where}); copy it to the CPU first")
    if hasattr(array, "block_until_ready"):  # JAX computes behind the caller's back
        array.block_until_ready()
    try:
        capsule = _capsule(array)
    except Exception as error:  # a lender says no by BufferError, or by what its library raises
        raise NotLent(f"its __dlpack__ says: {error}") from error
    return _read(capsule)


def _capsule(array: Any) -> Any:
    try:
        return array.__dlpack__(max_version=_NEWEST)
    except TypeError:  # as before version 1.0, which had no such argument
        return array.__dlpack__()


def _read(capsule: Any) -> Lent:
    if _capsule_is(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _NEWEST[0]:
            raise NotLent(f"it is lent by version {versioned.major} of DLPack, which is not known here")
        return _describe(versioned.tensor, capsule, not versioned.flags & _READ_ONLY)
    if _capsule_is(capsule, b"dltensor"):
        # This structure cannot say that it is read-only, and JAX lends its immutable arrays by it.
        return _describe(_DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), capsule, False)
    raise NotLent("its __dlpack__ gives something else than a DLPack capsule")


def _describe(tensor: Any, capsule: Any, writable: bool) -> Lent:
    shape = [tensor.shape[axis] for axis in range(tensor.ndim)]
    strides = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else None
    count = 1
    for length in shape:
        if length < 0:
            raise NotLent(f"it has {length} elements along an axis")
        count *= length
    element = f"{_KINDS.get(tensor.code, f'kind {tensor.code}')}{tensor.bits}"
    if tensor.lanes != 1:
        element += f" x {tensor.lanes}"
    # Where there is no memory an offset leads nowhere.
    address = tensor.data + tensor.byte_offset if tensor.data else 0
    return Lent(address, count, element, _contiguous(shape, strides), writable, capsule)


def _contiguous(shape: list[int], strides: list[int] | None) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
