"""Tensors of devices (CUDA and the like): reduced in a copy on the CPU, which is copied back when the result stands.

Owns these copies. Knows of torch's tensors only what they can do, `new_empty`, `detach` and `copy_`, and imports
nothing. Not tested on a device: there was none; the tests use a class that behaves like a tensor of one. Copies wait
for the current stream of the thread that makes them: a caller that computes on other streams synchronises before it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from pccl.dataplane.tensors.buffers import Buffers, buffers, refuse_unplain, tensor


class Operands(Struct, frozen=True):
    """What a collective works on, and what is left to do once its result stands."""

    buffers: Buffers
    deliver: Callable[[], object] | None = None
    """Copies the result from the CPU to where it belongs; None when it is there already."""


def operands(send: Any, recv: Any, call: str) -> Operands:
    """Both sides of a collective, wherever they lie. In place, `send` and `recv` are the same object."""
    if not on_device(send) and not on_device(recv):
        return Operands(buffers(send, recv, call))
    source = host_copy(send, f"{call}: send") if on_device(send) else send
    if not on_device(recv):
        return Operands(buffers(source, recv, call))
    target = source if recv is send else host_room(recv, f"{call}: recv")
    return Operands(buffers(source, target, call), partial(copy_back, recv, target))


def contribution(array: Any, call: str) -> Operands:
    """What is only read, and whose result gets room of its own on the CPU."""
    what = f"{call}: tensor"
    host = host_copy(array, what) if on_device(array) else array
    return Operands(Buffers(tensor(host, what, writable=False), None))


def on_device(array: Any) -> bool:
    """A tensor that can be copied to and from the CPU, and must be."""
    kind = getattr(getattr(array, "device", None), "type", "cpu")
    # A meta tensor has no elements to copy, and a DTensor is refused by name, wherever it lies.
    return kind not in ("cpu", "meta") and hasattr(array, "copy_") and not hasattr(array, "to_local")


def host_copy(array: Any, what: str) -> Any:
    """Its elements on the CPU. `what` names it in errors."""
    host = host_room(array, what)
    host.copy_(array.detach())
    return host


def copy_back(array: Any, host: Any) -> None:
    """The way back. Parameters, too: what is detached shares their memory and is none of autograd's business."""
    array.detach().copy_(host)


def host_room(array: Any, what: str) -> Any:
    """Room for its elements on the CPU: pinned if the device has that, because it copies twice as fast. Torch keeps
    pinned memory for the next time by itself."""
    refuse_unplain(array, what, writable=True)
    try:
        return array.new_empty(array.shape, device="cpu", pin_memory=True)
    except RuntimeError:  # no such memory for this device, or no more of it
        return array.new_empty(array.shape, device="cpu")
