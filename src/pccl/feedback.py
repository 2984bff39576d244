"""What coding has lost, kept for the next round.

Owns the residuals of one peer. Must not know how anything is coded or sent: the data plane reads what is carried into a
collective and writes what was lost in it, and only when that is committed does the one take the place of the other.
"""

import threading
from array import array
from typing import Any

from msgspec import Struct

from pccl.codec import Codec
from pccl.dataplane.buffers import Feedback, Tensor, fresh
from pccl.errors import UsageError
from pccl.types import TAG_MAX, DataType, Result, tag_name

_FORMATS = {DataType.FLOAT: "f", DataType.DOUBLE: "d"}


class _Kept(Struct):
    """Of one tag: what goes into its next collective, and room for what that loses."""

    carried: Tensor
    lost: Tensor
    known: bool = False
    """Something is carried: a collective was committed, or a state was loaded."""


class ErrorFeedback:
    """A codec that forgets nothing: `comm.all_reduce(tensor, quantize=feedback)`, with the same object every round.

    What a peer loses by coding sums, it adds to what it brings to the next collective with the same tag. In an
    all-reduce every peer codes every element exactly once, so that what all of them keep together is just what the
    result lacks: errors do not add up from round to round, they are made good. For SUM and AVG.

    One object serves any number of tags of one Communicator. A tag's first collective carries nothing, and a peer that
    joins begins with nothing. One that is aborted changes nothing, however often it is tried. Residuals are float32,
    for tensors of float64 they are that; two of them are held for each element."""

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
                    f"error feedback: what is kept for {tag_name(tag)} are {kept.carried.count} x "
                    f"{kept.carried.dtype.name}, and this tensor needs {count} x {real.name}; use another tag for it, "
                    f"or call reset({tag & TAG_MAX}) first",
                    Result.INVALID_ARGUMENT,
                )
            return Feedback(kept.carried, kept.lost)

    def keep(self, tag: int) -> None:
        """The collective that it was lent to is committed: what was lost is what the next one carries."""
        with self._lock:
            kept = self._kept.get(tag)
            if kept is not None:
                kept.carried, kept.lost, kept.known = kept.lost, kept.carried, True

    def reset(self, tag: int | None = None) -> None:
        """Forget what is kept for a tag, or for all. Not while a collective with it is in flight."""
        with self._lock:
            # A call over several types of elements has parts with tags of their own.
            self._kept = {key: kept for key, kept in self._kept.items() if tag not in (None, key & TAG_MAX)}

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that is kept, of plain values: the codec's name, and of each tag an `array` of residuals.
        Collectives in flight are not in it."""
        with self._lock:
            residuals = {tag: _copied(kept.carried) for tag, kept in self._kept.items() if kept.known}
        return {"codec": str(self.codec), "residuals": residuals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved, of the same codec. Raises `UsageError` if it is no such thing."""
        if state.get("codec") != str(self.codec):
            raise UsageError(
                f"error feedback: the state is of codec {state.get('codec')!r}, and this is {str(self.codec)!r}; build "
                "ErrorFeedback with the codec that was saved, or begin without a state",
                Result.INVALID_ARGUMENT,
            )
        try:
            kept = {int(tag): _filled(values) for tag, values in state["residuals"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"error feedback: this is no state of an ErrorFeedback ({error!r}); pass what state_dict gave",
                Result.INVALID_ARGUMENT,
            ) from None
        with self._lock:
            self._kept = kept


def _copied(tensor: Tensor) -> "array[float]":
    values: array[float] = array(_FORMATS[tensor.dtype])
    values.frombytes(memoryview(tensor.owner)[: tensor.nbytes])
    return values


def _filled(values: Any) -> _Kept:
    """From an `array`, a numpy array, or whatever else lends a buffer of floats."""
    view = memoryview(values)
    dtypes = {code: dtype for dtype, code in _FORMATS.items()}
    if view.format not in dtypes or not view.c_contiguous:
        raise UsageError("error feedback: residuals are arrays of float32 or float64", Result.INVALID_ARGUMENT)
    count, dtype = view.nbytes // view.itemsize, dtypes[view.format]
    carried = fresh(count, dtype)
    memoryview(carried.owner)[: view.nbytes] = view.cast("B")
    return _Kept(carried, fresh(count, dtype), True)
