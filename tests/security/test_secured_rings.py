"""Rings, aborts and state transfers over lanes under TLS: the same bits, and nothing of them on the wire."""

import functools
import secrets

import numpy as np
import pytest

from pccl.types import CollectiveKind, DataType, ReduceOp
from tests.native import oracle
from tests.native.rings import Rig, Work, copies
from tests.native.test_aborts import MIXES, Campaign, assert_soon
from tests.security.ends import SecuredRig, Wiretap, close_all, secured
from tests.state.rig import Rig as StateRig
from tests.state.rig import blank, equal, goal, holding, random_content

RINGS = [
    ("native", "native"),
    ("native", "reference"),
    ("reference", "native"),
    ("reference", "reference"),
    ("native", "reference", "native"),
    ("reference", "native", "native", "reference"),
]
rings = pytest.mark.parametrize("kinds", RINGS, ids="-".join)


@pytest.fixture(autouse=True)
def closed():
    yield
    close_all()


def results(rig, kinds, work, inputs):
    sends = copies(inputs)
    receives = [work.output(len(kinds), rank) for rank in range(len(kinds))]
    runs = rig.start(kinds, work, sends, receives)
    for run in runs:
        assert run.wait(), "it does not end"
        assert run.cause == ""
        run.commit()
        assert run.broken == ([], [])
    return receives


@rings
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_bits_are_those_of_plain_lanes(kinds, lanes):
    """One attempt after the other on the same lanes, large and small, through buffers that stop and go."""
    rig = SecuredRig(kinds, lanes, buffer_bytes=1 << 14, rekey_bytes=1 << 19)
    draw = np.random.default_rng(7)
    for count, segment in ((100_003, 1 << 16), (1, 4096), (257, 24), (30_011, 4096)):
        for kind in CollectiveKind:
            work = Work(DataType.FLOAT, ReduceOp.SUM, count, segment, kind)
            inputs = oracle.inputs(draw, *work[:3], len(kinds))
            wanted = oracle.results(inputs, work)
            for got, want in zip(results(rig, kinds, work, inputs), wanted, strict=True):
                assert got.tobytes() == want.tobytes()
    rig.close()


def test_codes_travel_under_tls_too():
    kinds = ("native", "reference", "native")
    rig = SecuredRig(kinds, 2)
    work = Work(DataType.FLOAT, ReduceOp.AVG, 50_003, 1 << 14, codec="int8.256")
    inputs = oracle.inputs(np.random.default_rng(3), *work[:3], 3)
    for got in results(rig, kinds, work, inputs):
        assert got.tobytes() == oracle.coded(inputs, work, rig.attempt).result.tobytes()
    rig.close()


@pytest.mark.parametrize("seed", range(8))
def test_abort_at_any_moment(seed):
    """Lanes stand on a segment boundary afterwards, or are reported broken: a record that was begun counts."""
    make_rig = functools.partial(SecuredRig, rekey_bytes=1 << 19)
    campaign = Campaign(seed, 2 + seed % 3, 1 + seed % 4, MIXES[seed % len(MIXES)], make_rig)
    campaign.right()
    for _ in range(5):
        campaign.aborted()
        campaign.right()
    campaign.rig.close()
    assert_soon(campaign.took)


@pytest.mark.parametrize("kinds", RINGS[:3], ids="-".join)
def test_a_state_is_pulled_over_secured_lanes(kinds):
    contents = [random_content("large", 5 << 20, 1), random_content("small", 1001, 2), random_content("one", 1, 3)]
    rig = StateRig(2, 2, 1 << 16, lambda buffer_bytes: secured(kinds, buffer_bytes, 1 << 20))
    mine = [blank(content) for content in contents]
    for _ in range(2):  # the lanes are clean afterwards: another transfer finds them as they were
        held, own = holding(contents), holding(mine)
        ends = [rig.serve(holder, held)[1] for holder in range(2)]
        _, end = rig.pull(own, goal(held))
        report = end.wait()
        assert (report.cause, report.broken, report.dropped) == ("", (), ())
        assert all(each.wait().broken == () for each in ends)
        assert equal(mine, contents)
        rig.attempt += 1
        for content in mine:
            content.array[:] = 0
    rig.close()


@pytest.mark.parametrize("protected", [True, False])
def test_a_wiretap_sees_nothing_of_a_tensor(protected):
    """Without TLS it sees all of it, or the test would prove nothing."""
    tap, kinds = Wiretap(), ("native", "reference", "native")
    rig = SecuredRig(kinds, 2, tap=tap) if protected else TappedRig(tap)
    work = Work(DataType.UINT8, ReduceOp.SUM, 120_000, 1 << 14)
    inputs = [np.frombuffer(secrets.token_bytes(work.count), np.uint8) for _ in kinds]
    got = results(rig, kinds, work, inputs)
    rig.close()
    tap.close()
    assert len(tap.recorded) > 4 * work.count
    assert any(tap.shows(each.tobytes()) for each in (*inputs, got[0])) != protected


class TappedRig(Rig):
    """Plain lanes through a wiretap."""

    def __init__(self, tap):
        self._tap = tap
        super().__init__(3, 2)

    def connect(self, link):
        return self._tap.connection()
