"""Digests: the cut into chunks, every type and alignment, threads, and the progress of long ones."""

import numpy as np
import pytest
import xxhash

from pccl.dataplane.state import digests
from pccl.dataplane.state.digests import CHUNK_BYTES, chunk_bytes, chunks, content_digests, differing, digest_at
from pccl.dataplane.tensors.buffers import tensor
from pccl.types import DataType
from tests.state.rig import random_content

SIZES = [0, 1, 15, 1000, digests.COPIED_BYTES_MAX, digests.COPIED_BYTES_MAX + 1, CHUNK_BYTES - 1, CHUNK_BYTES]
SIZES += [CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 17]


def plain(content):
    data = content.array.tobytes()
    return b"".join(
        xxhash.xxh3_128_digest(data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES)
    )


def test_chunks_are_hashed_one_by_one_whatever_their_alignment():
    contents = [random_content(str(size), size, size, offset=size % 16) for size in SIZES]
    assert content_digests([content.entry.tensor for content in contents]) == [plain(each) for each in contents]
    for size in SIZES:
        assert sum(chunk_bytes(size, index) for index in range(chunks(size))) == size


@pytest.mark.parametrize("dtype", DataType)
def test_every_type(dtype):
    content = random_content("x", 1000 * dtype.itemsize, 3, dtype)
    assert content_digests([content.entry.tensor]) == [plain(content)]


def test_a_scalar_is_a_content_of_one_element():
    scalar = np.array(2.5, np.float32)
    assert content_digests([tensor(scalar, "x", writable=True)]) == [xxhash.xxh3_128_digest(scalar.tobytes())]


def test_threads_give_the_same_and_tell_their_progress(monkeypatch):
    contents = [random_content(str(size), size, size) for size in SIZES]
    alone = content_digests([content.entry.tensor for content in contents])
    monkeypatch.setattr(digests, "THREADED_BYTES", 1)
    monkeypatch.setattr(digests, "BYTES_PER_THREAD", 1)
    monkeypatch.setattr(digests.os, "cpu_count", lambda: 5)
    told = []
    assert content_digests([content.entry.tensor for content in contents], told.append) == alone
    assert told == sorted(told)
    assert told[-1] == sum(SIZES)


def test_a_callback_that_raises_is_heard(monkeypatch):
    monkeypatch.setattr(digests, "THREADED_BYTES", 1)
    content = random_content("x", 5 * CHUNK_BYTES, 1)

    def interrupt(done):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        content_digests([content.entry.tensor], interrupt)


def test_differing_chunks_are_found():
    content = random_content("x", 3 * CHUNK_BYTES + 1, 1)
    before = content_digests([content.entry.tensor])[0]
    content.array[CHUNK_BYTES] ^= 1
    content.array[-1] ^= 1
    after = content_digests([content.entry.tensor])[0]
    assert differing(before, after) == [1, 3]
    assert differing(before, before) == []
    assert digest_at(before, 2) == digest_at(after, 2)
