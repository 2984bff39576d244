"""Tensors of a shared state: any type of element may be in one, since a state is moved and compared, never computed.

Owns the name of a type that cannot be reduced, and the view of a tensor's memory as bytes. Imports neither numpy nor
torch. Must not know manifests.
"""

import sys
from typing import Any

from pccl.dataplane.tensors.buffers import Tensor, refuse_unplain, tensor, wrong
from pccl.dataplane.tensors.device import Remote, on_device, remote
from pccl.types import DataType

Element = DataType | str
"""A type that can be reduced, or the name of another one, such as `bool`: elements of those are counted in bytes."""


def element_of(array: Any) -> Element | None:
    """The type of a tensor's elements; None if only a look at its memory tells."""
    dtype = getattr(array, "dtype", None)
    if dtype is None or isinstance(dtype, DataType):
        return dtype
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    try:
        return DataType.from_element_name(name)
    except ValueError:
        return name


def state_tensor(array: Any, what: str) -> tuple[Element, Tensor | Remote]:
    """A tensor of a shared state, wherever it lies, and the type of its elements; nothing is copied. `what` names it in
    errors."""
    element = element_of(array)
    if on_device(array):
        known = isinstance(element, DataType)
        return element or "", remote(array, what, written=True, as_bytes=not known)
    if isinstance(element, str):
        return element, tensor(_as_bytes(array, what), what, writable=True)
    found = tensor(array, what, writable=True)
    return found.dtype, found


def _as_bytes(array: Any, what: str) -> Any:
    """The memory of a tensor of the CPU as bytes."""
    if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        refuse_unplain(array, what, writable=True)
        return array.detach().view(-1).view(sys.modules["torch"].uint8) if array.is_contiguous() else array
    if hasattr(array, "__array_interface__") and array.flags.c_contiguous and not hasattr(array, "mask"):
        try:
            return array.reshape(-1).view("uint8")
        except TypeError as error:  # it holds Python's objects
            raise wrong(what, f"its elements are not plain bytes: {error}") from error
    return array  # and refused for what it is
