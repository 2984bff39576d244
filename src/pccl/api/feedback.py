"""What coding has lost, kept for the next round.

Owns the residuals of one peer. Must not know how anything is coded or sent: the data plane reads what is carried into a
collective and writes what was lost in it, and only when that is committed does the one take the place of the other.
"""

import threading
from array import array
from typing import Any

from msgspec import Struct

from pccl.codec import Codec
from pccl.dataplane.tensors.buffers import Feedback, Tensor, fresh
from pccl.errors import UsageError
from pccl.types import DataType, Result, part_tag, tag_name

_FORMATS = {DataType.FLOAT: "f", DataType.DOUBLE: "d"}


class _Kept(Struct):
    """Of one tag: what goes into its next collective, and room for what that loses."""

    carried: Tensor
    lost: Tensor
    known: bool = False
    """Something is carried: a collective was committed, or a state was loaded."""


class ErrorFeedback:
    """A codec with memory: `comm.all_reduce(tensor, quantize=feedback)`, with the same object every round.

    A peer adds the rounding errors of its codes to its contribution to the next collective with the same tag. In an
    all-reduce every peer codes every element exactly once, so that the residuals of all peers together are exactly what
    the result lacks: errors do not add up from round to round, they are corrected. For SUM and AVG.

    One object serves any number of tags of one Communicator. A tag's first collective and a peer that joins begin with
    zeros. A collective that is aborted changes nothing, however often it is tried. Residuals are float32, or float64
    for tensors of float64; two of them are held for each element."""

    def __init__(self, codec: Codec | str) -> None:
        try:
            self.codec = codec if isinstance(codec, Codec) else Codec(codec)
        except ValueError as error:
            raise UsageError(f"ErrorFeedback: {error}", Result.INVALID_ARGUMENT) from None
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}

    def lend(self, tag: int, count: int, dtype: DataType) -> Feedback:
        """For a collective with this tag over so many elements."""
        real = DataType.DOUBLE if dtype is DataType.DOUBLE else DataType.FLOAT
        with self._lock:
            kept = self._kept.get(tag)
            fits = kept is not None and (kept.carried.count, kept.carried.dtype) == (count, real)
            if kept is None or not (fits or kept.known):
                kept = self._kept[tag] = _Kept(fresh(count, real), fresh(count, real))
            elif not fits:
                raise UsageError(
                    f"error feedback: a tensor with {tag_name(tag)} must need residuals of {kept.carried.count} x "
                    f"{kept.carried.dtype.name} as before, got one that needs {count} x {real.name}; use another tag, "
                    "or reset that tag first",
                    Result.INVALID_ARGUMENT,
                )
            return Feedback(kept.carried, kept.lost)

    def keep(self, tag: int) -> None:
        """The collective that it was lent to is committed: what was lost is what the next one carries."""
        with self._lock:
            kept = self._kept.get(tag)
            if kept is not None:
                kept.carried, kept.lost, kept.known = kept.lost, kept.carried, True

    def take_back(self, tag: int) -> None:
        """The result of the tag's last collective was committed, and is not used after all: what went into it goes into
        the next one. Not twice, and not while a collective with it is in flight."""
        self.keep(tag)

    def reset(self, tag: int | None = None) -> None:
        """Forget what is kept for a tag, or for all. Not while a collective with it is in flight."""
        with self._lock:
            # A call over several types of elements has parts with tags of their own.
            gone = self._kept if tag is None else [part_tag(tag, part) for part in range(len(DataType))]
            self._kept = {key: kept for key, kept in self._kept.items() if key not in gone}

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that is kept, of plain values: the codec's name, and of each tag an `array` of residuals.
        Collectives in flight are not in it."""
        with self._lock:
            residuals = {tag: _copied(kept.carried) for tag, kept in self._kept.items() if kept.known}
        return {"codec": str(self.codec), "residuals": residuals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved, of the same codec. Raises `UsageError` if it is anything else."""
        if state.get("codec") != str(self.codec):
            raise UsageError(
                f"error feedback: the state must be of codec {str(self.codec)!r}, got {state.get('codec')!r}; build "
                "ErrorFeedback with the codec that was saved, or begin without a state",
                Result.INVALID_ARGUMENT,
            )
        try:
            kept = {int(tag): _filled(values) for tag, values in state["residuals"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"error feedback: the state must be what state_dict returned, got something else ({error!r})",
                Result.INVALID_ARGUMENT,
            ) from None
        with self._lock:
            self._kept = kept


def _copied(tensor: Tensor) -> "array[float]":
    values: array[float] = array(_FORMATS[tensor.dtype])
    values.frombytes(memoryview(tensor.owner)[: tensor.nbytes])
    return values


def _filled(values: Any) -> _Kept:
    """From an `array`, a numpy array, or any other object with a buffer of floats."""
    view = memoryview(values)
    dtypes = {code: dtype for dtype, code in _FORMATS.items()}
    if view.format not in dtypes or not view.c_contiguous:
        raise UsageError(
            "error feedback: residuals must be contiguous arrays of float32 or float64, "
            f"got {'contiguous' if view.c_contiguous else 'strided'} elements of format {view.format!r}",
            Result.INVALID_ARGUMENT,
        )
    count, dtype = view.nbytes // view.itemsize, dtypes[view.format]
    carried = fresh(count, dtype)
    memoryview(carried.owner)[: view.nbytes] = view.cast("B")
    return _Kept(carried, fresh(count, dtype), True)
