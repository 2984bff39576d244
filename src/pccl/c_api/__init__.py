"""What stands behind PCCL's C functions: `libpccl.so` imports this, and calls one function of it.

Owns that function, the door: calls come in as a number and up to five words of 64 bits, answers go out as a result code
and a sentence. Whatever is raised becomes both. Must not know what a call does. Not for programs in Python.
"""

import ctypes

from pccl.c_api.calls import CALLS
from pccl.c_api.masters import interrupts
from pccl.errors import MembershipLost, PCCLError
from pccl.types import Result

_DID_RUN = 1
"""Added to each result code: 0 is what a callback returns that has failed before its first line, and no success."""

_Door = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p)


class _Table(ctypes.Structure):
    """`struct capi_table` of native/c_api/guest.h."""

    _fields_ = (
        ("calls", ctypes.c_uint64),
        ("text_bytes", ctypes.c_uint64),
        ("door", ctypes.c_void_p),
        ("interrupts", ctypes.c_int64),
    )


_open: list[object] = []
"""Kept for as long as the process lives, as is what C holds the address of."""


def open_door(address: int) -> None:
    """Fill the table of the library at this address. From then on it calls."""
    table = _Table.from_address(address)
    if table.calls != len(CALLS):
        raise RuntimeError(f"libpccl.so knows {table.calls} calls, this package {len(CALLS)}: use the one that it has")
    room = table.text_bytes

    def enter(number: int, words: "ctypes._Pointer[ctypes.c_uint64]", text: int) -> int:
        try:
            call, count = CALLS[number]
            call(*words[:count])
            return Result.SUCCESS + _DID_RUN
        except BaseException as error:  # C has no other way to learn of it
            _write(_sentence(error), text, room)
            return _code(error) + _DID_RUN

    door = _Door(enter)
    _open.append(door)
    table.interrupts = interrupts()
    table.door = ctypes.cast(door, ctypes.c_void_p).value


def _code(error: BaseException) -> Result:
    """Programs in C have a number to decide by: RANK_CONNECTION_LOST means that the same call can be made again, so
    that loops over it end when this peer is out of the run."""
    if isinstance(error, MembershipLost):
        return Result.MASTER_CONNECTION_FAILED
    if isinstance(error, PCCLError):
        return error.result
    return Result.INVALID_ARGUMENT if isinstance(error, ValueError) else Result.INTERNAL_ERROR


def _sentence(error: BaseException) -> str:
    """As in Python; what is not raised on purpose has its class in front."""
    return str(error) if isinstance(error, PCCLError | ValueError) else f"{type(error).__name__}: {error}"


def _write(sentence: str, address: int, room: int) -> None:
    """Cut at the end of a character."""
    content = sentence.encode("utf-8", "replace")[: room - 1].decode("utf-8", "ignore").encode() + b"\0"
    ctypes.memmove(address, content, len(content))
