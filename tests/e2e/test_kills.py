"""For each call and each point of its life: a peer dies there. Survivors get the same result or the same error, their
inputs are as they were, the same call again gives the exact result of the survivors, and nobody waits for long."""

import queue
import signal
from contextlib import suppress

import pytest

from tests.e2e.harness import Ended, MasterProcess, PeerProcess, all_do, join
from tests.patience import HANG_S, allow

CALLS = ["small", "large", "many", "flight", "gather", "scatter", "broadcast", "coded", "coded small"]
WITH_PARCELS = ["small", "flight", "coded small"]
ON_LANES = [call for call in CALLS if "small" not in call]
BOUND_S = 10.0
"""A death closes connections at once; what is left is a few rounds of votes on a busy machine."""
REUNION_S = 1.0
"""Two neighbours who die together are each other's only witnesses: for so long the master hopes that both come back."""

SHARES = (1.0, 10.0, 100.0, 1000.0)
"""By peer, survivors first: a sum tells who is in it. The first is the root of broadcasts."""


class Stage:
    """A master and two survivors, kept from test to test, since starting them takes longer than a test; unless one of
    them is not as it should be after a test."""

    def __init__(self):
        self._processes = []
        self.survivors = []

    def ready(self):
        try:
            if self.survivors and all(peer.says_nothing() for peer in self.survivors):
                all_do(self.survivors, "await_size", size=2)
                all_do(self.survivors, "pending")
                return
        except (AssertionError, Ended, queue.Empty):
            pass
        self.end()
        self.master = MasterProcess(reunion_s=REUNION_S)
        self._processes.append(self.master)
        self.survivors = self.start(2)
        join([], self.survivors)
        self.root = self.survivors[0].peer

    def start(self, count, first=0):
        peers = [PeerProcess(self.master.address, token=False) for _ in range(count)]
        self._processes += peers
        for peer, share in zip(peers, SHARES[first:], strict=False):
            peer.expect("ready")
            peer.share = share
        return peers

    def end(self):
        for process in self._processes:
            process.end()
        self._processes = []

    def order(self, peers, call, **arguments):
        for peer in peers:
            peer.order("end_of", call=call, share=peer.share, root=self.root, **arguments)


@pytest.fixture(scope="module")
def kept_stage():
    stage = Stage()
    yield stage
    stage.end()


@pytest.fixture
def stage(kept_stage):
    kept_stage.ready()
    return kept_stage


@pytest.fixture
def cast(stage):
    """The two survivors, then this many victims, all in one ring."""

    def start(victims=1):
        return join(stage.survivors, stage.start(victims, first=2))

    return start


# ── what must hold ───────────────────────────────────────────────────────────────────────────────────────────────────


def ends(peers):
    """How the call ended, tag by tag: the same on all of them, within the bound, with all inputs intact."""
    answers = [peer.expect("end_of") for peer in peers]
    assert max(answer["seconds"] for answer in answers) < allow(BOUND_S)
    for answer in answers:
        assert all(end.get("intact", True) for end in answer["ends"].values()), answer
    told = [
        {tag: (end["error"], end.get("digest"), end.get("peers")) for tag, end in answer["ends"].items()}
        for answer in answers
    ]
    assert all(each == told[0] for each in told), told
    return answers[0]["ends"]


def exact(end, call, peers):
    """Committed among exactly these, with exactly the values that this call gives them."""
    shares = [peer.share for peer in peers]
    values = {"gather": sorted(shares), "broadcast": [SHARES[0]]}.get(call, [sum(shares)])
    assert (end["error"], end.get("values")) == (None, values)
    assert end["peers"] == sorted(peer.peer for peer in peers)


def go_on(stage, call, survivors, aborted=()):
    """The same call again, for the tags that were aborted, and once more as a whole."""
    for arguments in [{"tags": [int(tag) for tag in aborted]}] * bool(aborted) + [{}]:
        stage.order(survivors, call, **arguments)
        for end in ends(survivors).values():
            exact(end, call, survivors)


def end_alike(stage, call, survivors, dead):
    """Each tag was committed with the dead, or without, or aborted; then the survivors go on."""
    aborted = []
    for tag, end in ends(survivors).items():
        if end["error"]:
            assert end["error"] == "CollectiveAborted", end
            assert f"tag {tag}" in end["reason"]
            aborted.append(tag)
        else:
            exact(end, call, [*survivors, *(peer for peer in dead if peer.peer in end["peers"])])
    go_on(stage, call, survivors, aborted)


def doom(victim, point, **arguments):
    victim.do("doom", point=point, **arguments)


def await_end(victim):
    """Wait for its death. If its call ended before it came to its point, it is killed after that."""
    with suppress(Ended):
        victim.expect_any(("end_of",))
        victim.kill()


# ── the points ───────────────────────────────────────────────────────────────────────────────────────────────────────

BEFORE_START = [
    (call, point)
    for call in CALLS
    for point in ("LAUNCH", "PARCEL", "VOTE")
    if point != "PARCEL" or call in WITH_PARCELS
]


@pytest.mark.parametrize(("call", "point"), BEFORE_START)
def test_before_the_start_the_dead_is_counted_out(stage, cast, call, point):
    """No abort, no second attempt."""
    *survivors, victim = cast()
    doom(victim, point, tag=0)
    stage.order([victim], call)
    victim.process.wait(HANG_S)
    stage.order(survivors, call)
    for end in ends(survivors).values():
        exact(end, call, survivors)
    go_on(stage, call, survivors)


@pytest.mark.parametrize(("call", "point"), [each for each in BEFORE_START if each[1] != "VOTE"])
def test_whoever_waits_for_the_vote_of_the_dead_goes_on(stage, cast, call, point):
    *survivors, victim = cast()
    doom(victim, point, tag=0)
    stage.order(survivors, call)
    stage.order([victim], call)
    victim.process.wait(HANG_S)
    ended = ends(survivors)
    exact(ended["0"], call, survivors)
    # Other collectives of a flight may have been under way.
    go_on(stage, call, survivors, [tag for tag, end in ended.items() if end["error"]])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("point", ["VOTE", "START", "FINISH", "REPORT"])
def test_between_vote_and_outcome_all_survivors_end_alike(stage, cast, call, point):
    *survivors, victim = cast()
    doom(victim, point, tag=0)
    stage.order([*survivors, victim], call)
    victim.process.wait(HANG_S)
    end_alike(stage, call, survivors, [victim])


@pytest.mark.parametrize("call", CALLS)
def test_an_outcome_that_one_has_heard_holds_for_all(stage, cast, call):
    *survivors, victim = cast()
    doom(victim, "OUTCOME", tag=0)
    stage.order([*survivors, victim], call)
    victim.process.wait(HANG_S)
    ended = ends(survivors)
    if call == "many":
        # What it heard was the outcome of one part; the transaction has two.
        assert ended["0"]["error"] in (None, "CollectiveAborted")
    else:
        exact(ended["0"], call, [*survivors, victim])
    go_on(stage, call, survivors, [tag for tag, end in ended.items() if end["error"]])


@pytest.mark.parametrize("call", ON_LANES)
@pytest.mark.parametrize("moved_bytes", [1, 300_000, 2_000_000, 6_000_000])
def test_at_some_byte(stage, cast, call, moved_bytes):
    *survivors, victim = cast()
    doom(victim, "BYTES", moved_bytes=moved_bytes)
    stage.order([*survivors, victim], call)
    await_end(victim)
    end_alike(stage, call, survivors, [victim])


# ── others than one that dies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("points", [("START", "START"), ("VOTE", "REPORT"), ("FINISH", "LAUNCH")])
def test_two_die_at_once(stage, cast, call, points):
    *survivors, first, second = cast(2)
    for victim, point in zip((first, second), points, strict=True):
        doom(victim, point, tag=0)
    stage.order([*survivors, first, second], call)
    for victim in (first, second):
        await_end(victim)
    end_alike(stage, call, survivors, [first, second])


@pytest.mark.parametrize("call", CALLS)
def test_the_last_survivor_is_told_at_once_and_keeps_its_input(master, start_peers, call):
    survivor, victim = join([], start_peers(2, master.address, token=False))
    doom(victim, "START", tag=0)
    for peer, share in zip((survivor, victim), SHARES, strict=False):
        peer.share = share
        peer.order("end_of", call=call, share=share, root=survivor.peer)
    victim.process.wait(HANG_S)
    for end in ends([survivor]).values():
        if end["error"] is None:
            exact(end, call, [survivor, victim])
        else:
            assert end["error"] in ("CollectiveAborted", "TooFewPeers")
    survivor.order("end_of", call=call, share=SHARES[0], root=survivor.peer)
    assert {end["error"] for end in ends([survivor]).values()} == {"TooFewPeers"}


@pytest.mark.parametrize("call", CALLS)
def test_a_joiner_arrives_while_another_dies(stage, cast, call):
    """It waits as a candidate while the collective is aborted, and is in the next one."""
    *survivors, victim = cast()
    (joiner,) = stage.start(1, first=3)
    doom(victim, "START", tag=0)
    joiner.order("connect")
    stage.order([*survivors, victim], call)
    victim.process.wait(HANG_S)
    end_alike(stage, call, survivors, [victim])
    all_do(survivors, "await_pending")
    all_do(survivors, "update")
    joiner.expect("connect")
    go_on(stage, call, [*survivors, joiner])
    joiner.kill()


@pytest.mark.parametrize("point", ["START", "BYTES", "REPORT"])
def test_a_broadcast_whose_root_dies_names_another(stage, cast, point):
    *survivors, root = cast()
    doom(root, point, tag=0)
    for peer in (*survivors, root):
        peer.order("end_of", call="broadcast", share=peer.share, root=root.peer)
    await_end(root)
    (end,) = ends(survivors).values()
    if end["error"] is None:
        assert end["values"] == [root.share]
    else:
        assert end["error"] == "CollectiveAborted"
    for peer in survivors:
        peer.order("end_of", call="broadcast", share=peer.share, root=root.peer)
    assert ends(survivors)["0"]["error"] == "CallMismatch"
    go_on(stage, "broadcast", survivors)


@pytest.mark.parametrize("call", CALLS)
def test_a_stopped_peer_holds_the_others_up_no_longer_than_the_limit(start_master, start_peers, call):
    master = start_master(silence_s=2.0)
    *survivors, stopped = join([], start_peers(3, master.address, token=False))
    root = survivors[0].peer
    stopped.stop()
    for peer, share in zip((*survivors, stopped), SHARES, strict=False):
        peer.share = share
        peer.order("end_of", call=call, share=share, root=root)
    for end in ends(survivors).values():
        exact(end, call, survivors)
    stopped.signal(signal.SIGCONT)
    assert {end["error"] for end in ends([stopped]).values()} == {"Kicked"}
