"""A crowd of candidates costs the run nothing but their own places, and one that fails again and again waits."""

import pytest

from pccl.core.effects.master import Received
from pccl.core.fields import Identity, KickKind, LaneTls
from pccl.core.limits import MasterLimits
from pccl.core.master.roster import MemberStage
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import AskPending, Fetch, Join, LinkDown, VoteTopology
from pccl.core.messages.to_peer import Kick, PendingAnswer, Topology, TopologyUpdated, Waiting, Welcome, Wire
from pccl.types import PeerId
from tests.unit.scripted_master import Stage

EVIL = "10.6.6.6"
ADDRESS_MAX, CANDIDATES_MAX = MasterLimits().address_candidates_max, MasterLimits().candidates_max


class Run(Stage):
    """Anna is accepted, and answers every ping."""

    def __init__(self, lane_tls: LaneTls = "", **limits: float) -> None:
        super().__init__(MasterLimits(mesh_peers_max=0, **limits))  # type: ignore[arg-type]
        self.join_sealing(1, "anna", lane_tls)
        assert self.last(1, Topology)

    def say(self, connection: int, message: object, host: str = "10.0.0.1") -> None:
        self._note(self.master.handle(Received(connection, message, host), self.now))  # type: ignore[arg-type]

    def join(self, connection: int, peer: str, host: str = "10.0.0.1", group: int = 0, lanes: int = 0) -> None:
        self.say(connection, Join(Identity(peer, group, "", 1, lanes)), host)  # type: ignore[arg-type]

    def join_sealing(self, connection: int, peer: str, lane_tls: LaneTls, visits: bool = False) -> None:
        self.say(connection, Join(Identity(PeerId(peer), 0, "", 1, 0, visits, lane_tls=lane_tls)))

    def pass_time(self, seconds: float, *answering: int) -> None:
        """Those that answer do so at once."""
        end = self.now + seconds
        while self.now < end:
            self.wait(0.25)
            for connection in (1, *answering):
                pings = [each for each in self.told.get(connection, []) if isinstance(each, Ping)]
                for _ in pings:
                    self.say(connection, Pong())
                self.told[connection] = [each for each in self.told.get(connection, []) if not isinstance(each, Ping)]

    def refusal(self, connection: int) -> Kick | None:
        kick = self.last(connection, Kick)
        assert kick is None or isinstance(kick, Kick)
        return kick


class Beginning(Run):
    """No peer is accepted yet: for a moment others may come back."""

    def __init__(self) -> None:
        Stage.__init__(self, MasterLimits(mesh_peers_max=0), follows=True)


def test_one_address_does_not_fill_the_run() -> None:
    run = Run()
    for number in range(4095):
        run.join(10 + number, f"evil-{number}", EVIL)
    assert len(run.master.roster.candidates) == ADDRESS_MAX
    refused = run.refusal(4000)
    assert refused is not None
    assert refused.kind is KickKind.FULL
    assert EVIL in refused.reason
    run.join(5000, "bert", "10.0.0.2")
    assert run.last(5000, Welcome)


def test_nor_do_many() -> None:
    run = Run()
    for number in range(2000):
        run.join(10 + number, f"evil-{number}", f"10.6.{number // 256}.{number % 256}")
    assert len(run.master.roster.candidates) == CANDIDATES_MAX
    assert len(run.master.roster.accepted) == 1


def test_the_first_candidate_of_a_group_does_not_settle_its_lanes() -> None:
    run = Run()
    run.join(2, "evil", EVIL, group=1, lanes=1024)
    run.join(3, "bert", group=1, lanes=4)
    run.join(4, "carl", group=1)
    run.join(5, "dora", group=1, lanes=4)
    assert not any(run.refusal(connection) for connection in (2, 3, 4, 5))
    run.say(1, VoteTopology())
    assert run.master.roster.lanes[1] == 4
    refused = run.refusal(2)
    assert refused is not None
    assert refused.kind is KickKind.LANES
    assert not any(run.refusal(connection) for connection in (3, 4, 5))
    wire = run.last(3, Wire)
    assert isinstance(wire, Wire)
    assert {link.lanes for link in wire.links} == {4}


@pytest.mark.parametrize("visits", [False, True])
@pytest.mark.parametrize(("here", "comes"), [("on", "off"), ("off", "on"), ("on", "")])
def test_peers_that_seal_their_lanes_in_another_way_are_refused_when_they_join(
    here: LaneTls, comes: LaneTls, visits: bool
) -> None:
    run = Run(here)
    run.join_sealing(2, "bert", comes, visits)
    refused = run.refusal(2)
    assert refused is not None
    assert refused.kind is KickKind.LANES
    assert f"bert has lane_tls={comes or 'none'!r} and anna has {here!r}" in refused.reason
    run.join_sealing(3, "carl", here, visits)
    assert run.last(3, Welcome)


def test_a_run_that_begins_is_sealed_as_most_of_its_peers_want_and_of_equals_sealed() -> None:
    for wishes, settled in ((("off", "on", "off"), "off"), (("off", "on"), "on"), (("", "on"), "on")):
        run = Beginning()
        for number, wish in enumerate(wishes):
            run.join_sealing(10 + number, f"peer-{number}", wish)  # type: ignore[arg-type]
        run.pass_time(5.0)
        for number, wish in enumerate(wishes):
            refused = run.refusal(10 + number)
            assert (refused is None) == (wish == settled)
            assert refused is None or repr(settled) in refused.reason


def test_a_visitor_that_came_before_the_run_is_refused_when_it_fetches() -> None:
    run = Beginning()
    run.join_sealing(2, "vera", "off", visits=True)
    run.join_sealing(3, "bert", "on")
    run.pass_time(5.0, 2, 3)
    assert run.refusal(2) is None
    assert run.last(3, Topology)
    run.say(2, Fetch())
    refused = run.refusal(2)
    assert refused is not None
    assert "vera has lane_tls='off' and bert has 'on'" in refused.reason


def test_a_silent_candidate_stalls_the_others_less_and_less() -> None:
    run = Run()
    stalled = []
    for number in range(2, 12):
        run.join(number, f"evil-{number}", EVIL)
        run.say(1, AskPending())
        answer = run.last(1, PendingAnswer)
        assert isinstance(answer, PendingAnswer)
        before = run.now
        run.told[1] = []
        run.say(1, VoteTopology())
        while run.last(1, TopologyUpdated) is None:
            run.pass_time(1.0)
        stalled.append(run.now - before)
        assert answer.pending == (stalled[-1] > 0)
        run.close(number)
    assert stalled[0] > 5.0
    assert stalled[1] > 5.0
    assert set(stalled[2:]) == {0.0}, "it rests, and nobody is sent to admit it"
    run.join(50, "bert", "10.0.0.2")
    run.say(1, AskPending())
    answer = run.last(1, PendingAnswer)
    assert isinstance(answer, PendingAnswer)
    assert answer.pending, "another address is not held to account"
    run.pass_time(700.0, 50)
    run.join(60, "evil-60", EVIL)
    assert run.master.roster.candidates["evil-60"].rests_until <= run.now


def test_candidates_that_are_killed_in_their_trials_hold_up_no_other_from_there() -> None:
    """Many peers may be behind one address, and spot instances die together: none of these trials took long."""
    run = Run()
    for number in range(2, 12):
        run.join(number, f"spot-{number}", EVIL)
        run.say(1, VoteTopology())
        assert run.master.roster.candidates[f"spot-{number}"].stage is MemberStage.TRIED
        run.wait(0.05)
        run.close(number)
        assert run.last(1, TopologyUpdated)
    run.join(20, "bert", EVIL)
    assert run.master.roster.candidates["bert"].rests_until <= run.now


def test_one_that_answers_nothing_loses_its_place_though_nobody_tries_it() -> None:
    run = Run()
    run.join(2, "evil", EVIL)
    run.join(3, "bert")
    run.pass_time(200.0, 3)
    assert list(run.master.roster.candidates) == ["bert"]


def test_a_candidate_does_not_read_what_others_found_at_its_address() -> None:
    """Or it could use them to look at ports that it cannot reach itself."""
    run = Run(explain_after_s=0.5)
    run.join(2, "evil", EVIL)
    run.say(1, VoteTopology())
    for _ in range(200):
        wires = {connection: run.last(connection, Wire) for connection in (1, 2)}
        for connection, wire in wires.items():
            if isinstance(wire, Wire) and wire.links and wire.links[0].dial:
                cause = "Connection refused by 10.0.0.7" if connection == 1 else "my own"
                run.say(connection, LinkDown(wire.links[0].number, cause))
        run.pass_time(0.5, 2)
        if run.refusal(2) is not None:
            break
    refused = run.refusal(2)
    assert refused is not None
    assert "my own" in refused.reason
    read = [each.reason for each in run.told[2] if isinstance(each, Kick | Waiting)]
    assert len(read) > 1
    assert not [reason for reason in read if "refused by" in reason]
