"""Ranges of elements as codes, block by block, in numpy: what a hop of a coded all-reduce does.

Owns how a range is cut into blocks, what random numbers belong to it, and what a peer has lost by coding. Must not
know rings or lanes. `native/coding.cpp` is its twin.
"""

import ctypes
from collections.abc import Iterator

import numpy as np

from pccl.codec import Codec
from pccl.dataplane.ring.arithmetic import STORED, Array, Bytes, combine, divide, narrow, widen, with_one_nan
from pccl.dataplane.ring.codecs import CODECS
from pccl.dataplane.ring.codecs.parts import DOUBLE, FLOAT, Draws
from pccl.dataplane.ring.segments import mixed
from pccl.dataplane.tensors.buffers import Feedback, Tensor
from pccl.types import DataType, ReduceOp


class Coding:
    """One codec for elements of one type under one operation."""

    def __init__(self, codec: Codec, dtype: DataType, op: ReduceOp) -> None:
        self.codec, self._dtype, self._op = codec, dtype, op
        self._blocks = CODECS[codec.name]
        wide = dtype is DataType.DOUBLE
        self._real = DataType.DOUBLE if wide else DataType.FLOAT
        """What sums are computed in."""
        self._number = DOUBLE if wide else FLOAT

    def bytes(self, count: int) -> int:
        """So many elements as codes."""
        return self.codec.coded_bytes(count, self._dtype)

    def values(self, stored: Bytes) -> Array:
        """Elements as the numbers that sums are computed in."""
        return widen(stored.view(STORED[self._dtype]), self._dtype)

    def stored(self, values: Array) -> Bytes:
        """The way back."""
        return narrow(values, self._dtype).view(np.uint8)

    def encode(self, values: Array, first: int, stream: int) -> Bytes:
        """Codes of values that begin at this place of the tensor. Of the stream only random rounding takes notice: it
        must differ from hop to hop."""
        with np.errstate(all="ignore"):
            coded = [
                self._blocks.encode(rows, self._draws(first + begin, rows, stream)).ravel()
                for begin, rows in self._rows(values)
            ]
        return np.concatenate(coded) if coded else np.empty(0, np.uint8)

    def decode(self, coded: Bytes, count: int) -> Array:
        """The way back."""
        cut = self.bytes(count // self.codec.block * self.codec.block)
        parts = [(coded[:cut], count // self.codec.block, self.codec.block), (coded[cut:], 1, count % self.codec.block)]
        with np.errstate(all="ignore"):
            decoded = [
                self._blocks.decode(data.reshape(rows, -1), self._number, length).ravel()
                for data, rows, length in parts
                if len(data)
            ]
        return np.concatenate(decoded) if decoded else np.empty(0, self._number.real)

    def fold(self, coded: Bytes, own: Array) -> Array:
        """What came, reduced with what we bring."""
        return combine(self.decode(coded, len(own)), own, self._real, self._op)

    def average(self, values: Array, peers: int) -> Array:
        """Divided among so many, if that is the operation."""
        return divide(values, self._real, peers) if self._op is ReduceOp.AVG else values

    def lost(self, values: Array, coded: Bytes, peers: int = 1) -> Array:
        """What these codes do not tell of these values, each of which stands for so many peers. A sum that is no number
        has lost nothing that could be made good."""
        decoded = self.decode(coded, len(values))
        with np.errstate(all="ignore"):
            missing = (values - decoded) * self._number.real(peers if self._op is ReduceOp.AVG else 1)
        return np.asarray(np.where(np.isnan(decoded), self._number.real(0), missing))

    def reduce_all(self, contributions: list[Bytes], count: int) -> Bytes:
        """Of all peers, by rank; as in `arithmetic.reduce_all` the bits follow from the contributions alone."""
        values = self.decode(contributions[0], count)
        for each in contributions[1:]:
            values = combine(values, self.decode(each, count), self._real, self._op)
        stored = self.stored(self.average(values, len(contributions)))
        return with_one_nan(stored.view(STORED[self._dtype]), self._dtype).view(np.uint8)

    def stream(self, *numbers: int) -> int:
        """Where random numbers begin: a function of what all peers know, and of what tells codings apart."""
        state = mixed(self.codec.seed + 0x9E3779B97F4A7C15)
        for number in numbers:
            state = mixed(state ^ number)
        return state

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self, values: Array) -> Iterator[tuple[int, Array]]:
        """Whole blocks as the rows of an array, then what is left as one more; and where each begins."""
        cut = len(values) // self.codec.block * self.codec.block
        if cut:
            yield 0, values[:cut].reshape(-1, self.codec.block)
        if cut < len(values):
            yield cut, values[cut:].reshape(1, -1)

    def _draws(self, first: int, rows: Array, stream: int) -> Draws | None:
        """A random number for each element of blocks that begin at this place."""
        if not self.codec.stochastic:
            return None
        begins = np.uint64(first) + np.arange(len(rows), dtype=np.uint64) * np.uint64(self.codec.block)
        keys = (_mixed(_mixed(np.uint64(stream) ^ begins)) >> np.uint64(32)).astype(np.uint32).reshape(-1, 1)
        draws = keys + np.arange(rows.shape[1], dtype=np.uint32) * np.uint32(0x9E3779B9)
        draws = (draws ^ draws >> np.uint32(16)) * np.uint32(0x85EBCA6B)
        draws = (draws ^ draws >> np.uint32(13)) * np.uint32(0xC2B2AE35)
        return np.asarray(draws ^ draws >> np.uint32(16))


class CodedShares:
    """What one peer brings to a collective, as codes; with what it has lost by coding before."""

    def __init__(self, coding: Coding, feedback: Feedback | None) -> None:
        self.coding = coding
        self._carried = None if feedback is None else _numbers(feedback.carried)
        self._lost = None if feedback is None else _numbers(feedback.lost)

    def encode(self, own: Bytes, first: int, stream: tuple[int, ...]) -> Bytes:
        """Our elements from this place of the tensor on."""
        return self._coded(self._values(own, first), first, stream)

    def fold(self, coded: Bytes, own: Bytes, first: int, stream: tuple[int, ...]) -> Bytes:
        """What came, reduced with ours, as codes again."""
        return self._coded(self.coding.fold(coded, self._values(own, first)), first, stream)

    def finish(self, coded: Bytes, own: Bytes, first: int, stream: tuple[int, ...], peers: int) -> Bytes:
        """The same for the last time: divided among so many peers for AVG."""
        values = self.coding.average(self.coding.fold(coded, self._values(own, first)), peers)
        return self._coded(values, first, stream, peers)

    def _values(self, own: Bytes, first: int) -> Array:
        values = self.coding.values(own)
        if self._carried is None:
            return values
        with np.errstate(all="ignore"):
            return np.asarray(values + self._carried[first : first + len(values)])

    def _coded(self, values: Array, first: int, stream: tuple[int, ...], peers: int = 1) -> Bytes:
        coded = self.coding.encode(values, first, self.coding.stream(*stream))
        if self._lost is not None:
            self._lost[first : first + len(values)] = self.coding.lost(values, coded, peers)
        return coded


def memory(tensor: Tensor) -> Bytes:
    """The bytes of a tensor, where they are."""
    if tensor.nbytes == 0:
        return np.empty(0, np.uint8)  # the address of nothing may be anything
    memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.address)
    return np.frombuffer(memoryview(memory).cast("B"), np.uint8)


def _numbers(tensor: Tensor) -> Array:
    return memory(tensor).view(STORED[tensor.dtype])


def _mixed(state: Array) -> Array:
    """`segments.mixed` of many."""
    return np.asarray((state ^ state >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93))
