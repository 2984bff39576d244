"""Digests of contents: what tells whether two peers hold the same bytes, and which of them differ.

Owns the cut of contents into chunks, the hash (XXH3, 128 bits) and the threads that hash what is large. Must not know
names, manifests or lanes. The hash finds damage and difference; it is no protection against malice.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

import xxhash

from pccl.dataplane.tensors.buffers import Tensor
from pccl.dataplane.tensors.device import Remote, read_all

DIGEST_BYTES = 16

CHUNK_BYTES = 4 << 20
"""What is hashed, requested, checked and fetched again as one. Small enough that three are a fair window on a link
(1 Gbit/s and 80 ms hold 10 MB) and that one lost with its holder is no loss (0.2 s at 200 Mbit/s); large enough that
what Python does for each, some 0.1 ms, does not show, and that the digests of a state of 1 TB are 4 MB."""

THREADED_BYTES = 64 << 20
"""Below this one thread is done in some 10 ms, and starting others is not worth it."""
BYTES_PER_THREAD = 32 << 20
THREADS_MAX = 8
"""A few cores read as fast as the memory delivers; the others have better things to do."""

COPIED_BYTES_MAX = 64 << 10
"""Contents up to this are copied to be hashed: cheaper than to make a view of foreign memory, of which there may be
thousands. The hash holds the GIL for so little anyway."""

Progress = Callable[[int], None]
"""Told the bytes that are done so far: from several threads, but never from two at once."""


def chunks(nbytes: int) -> int:
    """How many chunks contents of this length have; none if they are empty."""
    return -(-nbytes // CHUNK_BYTES)


def chunk_bytes(nbytes: int, index: int) -> int:
    """The length of one of them: all are equal but the last."""
    return min(CHUNK_BYTES, nbytes - index * CHUNK_BYTES)


def memory(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, where they are."""
    return tensor.part(0, tensor.nbytes)


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """16 bytes that stand for these. Releases the GIL if they are many: `update` does so in every version of the
    package, its functions of one call only in later ones."""
    if len(data) <= COPIED_BYTES_MAX:
        return xxhash.xxh3_128_digest(data)
    state = xxhash.xxh3_128()
    state.update(data)
    return state.digest()


def content_digests(tensors: Sequence[Tensor | Remote], progress: Progress | None = None) -> list[bytes]:
    """For each tensor the digests of its chunks, one after the other. What lies on a device is taken as the streams of
    this thread leave it."""
    found = [b""] * len(tensors)
    large: list[tuple[int, memoryview]] = []
    remote: dict[int, Remote] = {}
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, Remote):
            remote[place] = tensor
        elif tensor.nbytes > COPIED_BYTES_MAX:
            large.append((place, memory(tensor)))
        elif tensor.nbytes:
            found[place] = digest(ctypes.string_at(tensor.address, tensor.nbytes))
    for place, digests in zip(remote, _remote_digests(list(remote.values())), strict=True):
        found[place] = digests
    done = sum(tensor.nbytes for tensor in tensors) - sum(len(content) for _, content in large)
    if progress is not None:
        progress(done)
    for place, digests in zip((place for place, _ in large), _Hashing(large, done, progress).run(), strict=True):
        found[place] = digests
    return found


def _remote_digests(tensors: list[Remote]) -> list[bytes]:
    """Chunk by chunk through the slots of each device's mover: nothing is kept."""
    found: list[list[bytes]] = [[] for _ in tensors]

    def take(whose: int, content: memoryview) -> None:
        found[whose].append(digest(content))

    read_all([(tensor, partial(take, whose)) for whose, tensor in enumerate(tensors)], CHUNK_BYTES)
    return [b"".join(digests) for digests in found]


class _Hashing:
    """Large contents, hashed chunk by chunk by as many threads as are worth it."""

    def __init__(self, large: list[tuple[int, memoryview]], done: int, progress: Progress | None) -> None:
        self._contents = [content for _, content in large]
        self._digests = [bytearray(chunks(len(content)) * DIGEST_BYTES) for content in self._contents]
        self._todo = iter(
            [(which, index) for which, content in enumerate(self._contents) for index in range(chunks(len(content)))]
        )
        self._lock = threading.Lock()
        self._done = done
        self._progress = progress
        self._failures: list[BaseException] = []

    def run(self) -> list[bytes]:
        total = sum(len(content) for content in self._contents)
        others = 0
        if total >= THREADED_BYTES:
            others = min(os.cpu_count() or 1, THREADS_MAX, total // BYTES_PER_THREAD) - 1
        threads = [threading.Thread(target=self._guarded, name=f"pccl hash {n}", daemon=True) for n in range(others)]
        for thread in threads:
            thread.start()
        self._guarded()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        return [bytes(digests) for digests in self._digests]

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # of the callback, or an interrupt: raised where the caller sees it
            self._failures.append(failure)

    def _work(self) -> None:
        hashed = 0
        while not self._failures:
            with self._lock:
                self._done += hashed
                if hashed and self._progress is not None:
                    self._progress(self._done)
                chunk = next(self._todo, None)
            if chunk is None:
                return
            which, index = chunk
            content = self._contents[which][index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
            self._digests[which][index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] = digest(content)
            hashed = len(content)


def digest_at(digests: bytes | bytearray, index: int) -> bytes:
    """The digest of one chunk among those of its contents."""
    return bytes(digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES])


def differing(mine: bytes | bytearray, theirs: bytes) -> list[int]:
    """Chunks whose digests differ; both sides have equally many."""
    if mine == theirs:
        return []
    return [index for index in range(len(theirs) // DIGEST_BYTES) if digest_at(mine, index) != digest_at(theirs, index)]
