"""Codes that arrive wrong: of another length they are refused, with any other content they are numbers, the same for
both data planes; never a crash, and never a byte beyond the tensors."""

import random

import numpy as np
import pytest

from pccl.codec import CODES, Codec
from pccl.dataplane.ring.arithmetic import check
from pccl.dataplane.ring.segments import HEADER_BYTES, Header
from pccl.types import DataType, ReduceOp
from tests.native.rings import TAG, Rig, Work
from tests.native.test_damage import Relay, Scene

BLOCK = 256
COUNT = 4 * BLOCK + 14  # two peers: chunks of 519, segments of 512 and 7
GUARD = 64


def segment(payload, length=None, **place):
    """Well sealed, whatever it says."""
    length = len(payload) if length is None else length
    header = Header(TAG, 5, place.get("hop", 0), place.get("index", 0), length, 0, check(np.frombuffer(payload, "u1")))
    return header.sealed().pack() + payload


def opposed(kind, work, stream):
    """A run of rank 0 of two against bytes of our own making: its cause, its result, and what lies around that."""
    rig = Rig(2, 1)
    rig.attempt = 5
    room = np.full(work.count + 2 * GUARD, 77, np.float32)
    array = room[GUARD:-GUARD]
    array[:] = np.linspace(-1, 1, work.count)
    before = array.tobytes()
    carried, lost = np.full(work.count, 0.5, np.float32), np.zeros(work.count, np.float32)
    rig.links[0][0][1].sendall(stream)
    run = rig.start_one(0, kind, work, (array, array, carried, lost))
    assert run.wait()
    if run.cause:
        run.restore()
        assert array.tobytes() == before
    else:
        run.commit()
    assert np.all(room[:GUARD] == 77)
    assert np.all(room[-GUARD:] == 77)
    rig.close()
    return run.cause, (array.tobytes(), lost.tobytes())


def work_of(name, op=ReduceOp.SUM):
    return Work(DataType.FLOAT, op, COUNT, 2 * BLOCK * 4, codec=str(Codec(name, BLOCK)))


def lengths(name):
    """Of the two segments of a chunk."""
    codec = Codec(name, BLOCK)
    return [codec.coded_bytes(count, DataType.FLOAT) for count in (2 * BLOCK, 7)]


@pytest.mark.parametrize("kind", ["native", "reference"])
@pytest.mark.parametrize("name", CODES)
def test_lengths_that_lie_are_refused(name, kind):
    whole, rest = lengths(name)
    for wrong in (1, whole - 1, whole + 1, 2 * BLOCK * 4, rest):
        cause, _ = opposed(kind, work_of(name), segment(bytes(wrong)))
        assert cause == "a segment from the previous peer has no place in this attempt"
    for wrong in (rest - 1, rest + 1, 28, whole):
        cause, _ = opposed(kind, work_of(name), segment(bytes(wrong), index=1))
        assert cause == "a segment from the previous peer has no place in this attempt"
    cause, _ = opposed(kind, work_of(name), segment(bytes(whole), index=2))
    assert cause == "a segment from the previous peer has no place in this attempt"


STEPS = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x0001, 0x3F80, 0xBF80, 0x7F7F]
"""Zeros, infinities, NaN, the smallest and the largest, of either sign."""


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX])
def test_any_content_is_the_same_for_both(name, op):
    draw = random.Random(f"{name} {op}")
    for _ in range(25):
        stream = b""
        for hop in (0, 1):
            for index, length in enumerate(lengths(name)):
                payload = bytearray(draw.randbytes(length))
                # Metadata of the first block, or what is taken for it.
                payload[:2] = draw.choice(STEPS).to_bytes(2, "little")
                at = draw.randrange(min(8, length - 1))
                payload[at : at + 2] = draw.choice(STEPS).to_bytes(2, "little")
                stream += segment(bytes(payload), hop=hop, index=index)
        native, reference = (opposed(kind, work_of(name, op), stream) for kind in ("native", "reference"))
        assert native[0] == reference[0] == ""
        assert native[1] == reference[1]


@pytest.mark.parametrize("kind", ["native", "reference"])
@pytest.mark.parametrize("seed", range(12))
def test_a_changed_byte_of_codes_is_a_failed_run(seed, kind):
    """Also of their metadata, which stands at the beginning of each block."""
    draw = random.Random(seed)
    place = draw.choice([HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 258, HEADER_BYTES + 259, HEADER_BYTES + 300])
    scene = Scene(seed, kind, Relay(place, flip=1 << draw.randrange(8)), codec="int8.256")
    causes = scene.play()
    assert scene.relay.done
    assert "damaged" in causes[1]
    for run, send, untouched in zip(scene.runs, scene.sends, scene.inputs, strict=True):
        run.restore()
        assert send.tobytes() == untouched.tobytes()
    scene.close()
