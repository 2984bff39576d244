"""Peers of one machine are admitted together or not at all, and go together; no other peer waits for half of them."""

from pathlib import Path

import pytest
from msgspec import structs

from pccl.config import PeerConfig, Places
from pccl.core.effects.master import Received
from pccl.core.fields import Identity, KickKind, Party
from pccl.core.limits import PARTY_SIZE_MAX, MasterLimits
from pccl.core.master.recovery.away import TOGETHER_S
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.observers import AskStatus
from pccl.core.messages.to_master import AskPending, Join, Leave, LinkDown, LinkUp, VoteTopology
from pccl.core.messages.to_peer import Introduce, Kick, PendingAnswer, Topology, TopologyUpdated, Waiting, Wire
from pccl.core.names import clean
from pccl.core.status import Status
from pccl.errors import UsageError
from pccl.security import identity
from pccl.types import PeerId
from pccl.wire.codec import decode_to_master, encode
from pccl.wire.framing import WireError
from tests.unit.scripted_master import LIMITS, Stage

KEY, OTHER = b"k" * 32, b"o" * 32
NAMES = ("a0", "a1", "b0", "b1", "c0", "c1")


class Run(Stage):
    """Peers by name, such as `a0`: of party `a`, in group 0, on the connection of their place in `NAMES`. Those that
    are not dead answer pings, and make the links that they are told to."""

    def __init__(self, limits: MasterLimits | None = None) -> None:
        super().__init__(limits or MasterLimits(mesh_peers_max=0))
        self.dead: set[int] = set()

    def join(self, name: str, connection: int = 0, **facts: object) -> int:
        connection = connection or 1 + NAMES.index(name)
        party = Party(f"party-{name[0]}", facts.pop("size", 2), facts.pop("key", KEY))  # type: ignore[arg-type]
        me = Identity(PeerId(name), int(name[1]), "", 1, 0, secret=f"of {name}", party=party)
        self.hear(connection, Join(structs.replace(me, **facts)))
        return connection

    def hear(self, connection: int, message: object) -> None:
        self._note(self.master.handle(Received(connection, message, "10.0.0.1"), self.now))  # type: ignore[arg-type]
        self._obey()

    def _obey(self) -> None:
        while due := [
            (told, message)
            for connection, told in self.told.items()
            for message in told
            if isinstance(message, Ping | Wire) and connection not in self.dead
        ]:
            told, message = due[0]
            told.remove(message)
            connection = next(each for each in self.told if self.told[each] is told)
            answers = [Pong()] if isinstance(message, Ping) else [LinkUp(link.number) for link in message.links]
            for answer in answers:
                self._note(self.master.handle(Received(connection, answer, "10.0.0.1"), self.now))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.wait(min(0.25, end - self.now))
            self._obey()

    def admit(self) -> None:
        for member in list(self.master.roster.accepted.values()):
            self.hear(member.connection, VoteTopology())

    @property
    def here(self) -> list[str]:
        return sorted(self.master.roster.accepted)


@pytest.fixture
def run() -> Run:
    """Two machines of two peers each are in."""
    run = Run()
    for name in NAMES[:2]:
        run.join(name)
    for name in NAMES[2:4]:
        run.join(name)
    run.admit()
    assert run.here == ["a0", "a1", "b0", "b1"]
    run.pass_time(1.0)
    return run


def test_the_first_party_begins_a_run_when_it_is_complete() -> None:
    run = Run()
    run.join("a0")
    run.pass_time(30.0)
    assert run.here == []
    assert run.master.explain() == ("a0 waits for 1 more rank of party party-a",)
    waiting = run.last(1, Waiting)
    assert isinstance(waiting, Waiting)
    assert waiting.reason.startswith("a0 waits for 1 more rank of party party-a")
    run.join("a1")
    assert run.here == ["a0", "a1"]


def test_no_peer_waits_for_half_a_party(run: Run) -> None:
    connection = run.join("c0")
    for asking in range(1, 5):
        run.hear(asking, AskPending())
    answer = run.last(1, PendingAnswer)
    assert isinstance(answer, PendingAnswer)
    assert not answer.pending
    run.admit()
    assert run.last(1, TopologyUpdated)
    assert run.here == ["a0", "a1", "b0", "b1"]
    assert all("c0" not in wait.missing for wait in run.master._waits.all())
    assert not any(wait.missing for wait in run.master._waits.all())
    run.join("c1")
    for asking in range(1, 5):
        run.hear(asking, AskPending())
    answer = run.last(1, PendingAnswer)
    assert isinstance(answer, PendingAnswer)
    assert answer.pending
    run.admit()
    assert run.here == list(NAMES)
    assert run.last(connection, Topology)


def test_a_member_that_dies_takes_its_party_along(run: Run) -> None:
    before = len([each for each in run.told[1] if isinstance(each, Topology)])
    run.dead.add(3)
    run.hear(1, LinkDown(run.master.links._ends[PeerId("a0")][("a0", "b0")].number, "reset"))
    run.close(3)
    assert run.here == ["a0", "a1"]
    kick = run.last(4, Kick)
    assert isinstance(kick, Kick)
    assert (kick.kind, "b0, group 0 of its party party-b, is gone" in kick.reason) == (KickKind.PARTY, True)
    topologies = [each for each in run.told[1] if isinstance(each, Topology)]
    assert len(topologies) == before + 1  # One change, not two.
    assert (topologies[-1].global_size, topologies[-1].ring) == (2, ("a0",))
    second = run.last(2, Topology)
    assert isinstance(second, Topology)
    assert second.epoch == topologies[-1].epoch


def test_goodbyes_of_a_party_are_one_departure(run: Run) -> None:
    run.hear(3, Leave())
    run.close(3)
    assert run.here == ["a0", "a1", "b0", "b1"]
    run.pass_time(TOGETHER_S / 2)
    run.hear(4, Leave())
    assert run.here == ["a0", "a1"]
    assert not run.last(4, Kick)
    assert {3, 4} <= set(run.closed)
    news = run.last(1, Topology)
    assert isinstance(news, Topology)
    assert not news.lost
    run.close(4)
    assert run.here == ["a0", "a1"]


def test_one_goodbye_alone_ends_the_party_a_second_later(run: Run) -> None:
    run.dead.add(3)
    run.hear(3, Leave())
    run.hear(3, Leave())
    run.pass_time(TOGETHER_S * 0.9)
    assert "b1" in run.here
    run.pass_time(TOGETHER_S * 0.2)
    assert run.here == ["a0", "a1"]
    kick = run.last(4, Kick)
    assert isinstance(kick, Kick)
    assert "b0, group 0 of its party party-b, is gone: it said goodbye" in kick.reason


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"size": 3, "group": 1}, "c0 has party_size=2 and x0 3"),
        ({"group": 0}, "c0 and x0 both have peer_group=0"),
    ],
)
def test_who_does_not_fit_is_refused_and_not_those_who_are_here(run: Run, facts: dict[str, object], named: str) -> None:
    run.join("c0")
    run.join("c0", 9, peer="x0", **facts)
    kick = run.last(9, Kick)
    assert isinstance(kick, Kick)
    assert kick.kind is KickKind.PARTY
    assert named in kick.reason
    run.join("c1")
    run.admit()
    assert {"c0", "c1"} <= set(run.here)


def test_one_more_than_there_are_is_refused(run: Run) -> None:
    run.join("c0")
    run.join("c1")
    run.join("c0", 9, peer="x0", group=7)
    kick = run.last(9, Kick)
    assert isinstance(kick, Kick)
    assert "its 2 peers are c0, c1" in kick.reason


def test_a_stranger_that_claims_a_party_keeps_no_peer_out(run: Run) -> None:
    run.join("c0", 8, peer="x0", key=OTHER)
    run.join("c1", 9, peer="x1", key=OTHER, size=3)
    run.join("c0")
    run.join("c1")
    run.admit()
    assert run.here == list(NAMES)
    assert any("party-c; there is a party of that name on another machine" in each for each in run.master.explain())


def test_two_parties_that_are_here_are_called_differently(run: Run) -> None:
    for name, connection in (("c0", 8), ("c1", 9)):
        run.join(name, connection, peer=f"x{name[1]}", party=Party("party-a", 2, OTHER))
    run.admit()
    introduced = run.last(1, Introduce)
    assert isinstance(introduced, Introduce)
    assert [each.party for each in introduced.names] == ["party-a #2"]
    own = run.last(9, Introduce)
    assert isinstance(own, Introduce)
    assert {each.peer: each.party for each in own.names} == {"a1": "party-a", "b1": "party-b", "x1": "party-a #2"}


def test_a_party_that_comes_again_waits_until_its_first_self_is_gone(run: Run) -> None:
    run.join("b0", 8, peer="y0")
    run.join("b1", 9, peer="y1")
    run.admit()
    assert "y0" not in run.here
    assert any("y0, y1 wait until the party party-b that is here is gone" in each for each in run.master.explain())
    run.hear(3, Leave())
    run.hear(4, Leave())
    run.admit()
    assert run.here == ["a0", "a1", "y0", "y1"]


def test_a_candidate_lost_in_its_trial_takes_its_party_out_of_it(run: Run) -> None:
    run.dead.update((5, 6))
    run.join("c0")
    run.join("c1")
    for connection in range(1, 5):
        run.hear(connection, VoteTopology())
    assert {str(each.stage) for each in run.master.roster.candidates.values()} == {"tried"}
    run.close(5)
    run._obey()
    assert run.here == ["a0", "a1", "b0", "b1"]
    assert run.last(1, TopologyUpdated)
    assert {peer: str(each.stage) for peer, each in run.master.roster.candidates.items()} == {"c1": "candidate"}
    assert not run.last(6, Kick)
    wire = run.last(6, Wire)
    assert isinstance(wire, Wire)
    assert wire.links == ()
    run.dead.discard(6)
    run.join("c0", 7, peer="c9")
    run.admit()
    assert run.here == ["a0", "a1", "b0", "b1", "c1", "c9"]


def test_the_status_names_parties(run: Run) -> None:
    run.join("c0")
    run.hear(50, AskStatus())
    status = run.last(50, Status)
    assert isinstance(status, Status)
    assert {each.peer: each.party for each in status.peers} == {
        name: f"party-{name[0]}" for name in ("a0", "a1", "b0", "b1", "c0")
    }
    assert any("c0 waits for 1 more rank of party party-c" in each.sentence for each in status.waits)


# ── a master that did not begin the run ──────────────────────────────────────────────────────────────────────────────


class Restarted(Stage):
    """Peers of `NAMES` come back to a master that knows nothing: two machines, or one."""

    def come_back_of(self, machines: str, *names: str) -> None:
        for name in names:
            party = Party(f"party-{name[0]}", 2, KEY)
            ring = tuple(f"{machine}{name[1]}" for machine in machines)
            size = 2 * len(machines)
            self.come_back(1 + NAMES.index(name), name, group=int(name[1]), party=party, ring=ring, global_size=size)

    @property
    def here(self) -> list[str]:
        return sorted(self.master.roster.accepted)


def test_parties_come_back_as_a_whole() -> None:
    stage = Restarted()
    stage.come_back_of("ab", "a0", "a1", "b0")
    assert stage.here == []
    stage.come_back_of("ab", "b1")
    assert stage.here == ["a0", "a1", "b0", "b1"]
    introduced = stage.last(1, Introduce)
    assert isinstance(introduced, Introduce)
    assert {each.peer: each.party for each in introduced.names} == {"a0": "party-a", "b0": "party-b"}


def test_who_comes_back_without_the_rest_of_its_party_is_out_after_the_usual_wait() -> None:
    stage = Restarted()
    stage.come_back_of("ab", "a0", "a1", "b0")
    stage.wait(LIMITS.reunion_s + 0.1)
    assert stage.here == ["a0", "a1"]
    kick = stage.last(3, Kick)
    assert isinstance(kick, Kick)
    assert (kick.kind, "the rest of its party party-b did not come back" in kick.reason) == (KickKind.PARTY, True)
    topologies = [each for each in stage.told[1] if isinstance(each, Topology)]
    assert [each.global_size for each in topologies] == [2]
    assert stage.master.explain() == ()


def test_half_of_the_only_party_is_no_run_and_newcomers_begin_one() -> None:
    stage = Restarted()
    stage.come_back_of("a", "a0")
    stage.send(9, Join(Identity(PeerId("new"), 0, "", 1, 0)))
    stage.wait(LIMITS.silence_s + 0.1)
    assert stage.here == ["new"]
    kick = stage.last(1, Kick)
    assert isinstance(kick, Kick)
    assert kick.kind is KickKind.PARTY


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_settings_of_a_party(monkeypatch: pytest.MonkeyPatch) -> None:
    def party(**given: object) -> tuple[str, int]:
        config = PeerConfig.resolve("localhost", 0, 0, Places(**given), {})  # type: ignore[arg-type]
        return config.party, config.party_size

    assert party() == ("", 1)
    assert party(party="node-7", party_size=2) == ("node-7", 2)
    monkeypatch.setenv("PCCL_PARTY", "node-8")
    monkeypatch.setenv("PCCL_PARTY_SIZE", "4")
    assert party() == ("node-8", 4)
    assert party(party="node-7", party_size=2) == ("node-7", 2)
    assert party(party="", party_size=1) == ("", 1)
    for wrong in ({"party": 7}, {"party": "x" * 49}, {"party": "\x1b[2J"}, {"party": " x"}):
        with pytest.raises(UsageError, match=r"party \(PCCL_PARTY\) must be a text of up to 48"):
            party(**wrong)
    for size in (0, PARTY_SIZE_MAX + 1, "two"):
        with pytest.raises(UsageError, match=r"party_size \(PCCL_PARTY_SIZE\) must be an integer from 1 to 64"):
            party(party_size=size)
    with pytest.raises(UsageError, match="must be 1 without a party, got 2"):
        party(party="", party_size=2)


def test_the_key_of_a_party_is_the_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(text: str) -> None:
        (tmp_path / "boot_id").write_text(text)

    monkeypatch.setattr(identity, "_BOOT_IDS", (tmp_path / "boot_id",))
    assert identity.party_of("node-7", b"") == b""  # This machine has none.
    drawn("one\n")
    key = identity.party_of("node-7", b"pin")
    assert len(key) == 32
    assert identity.party_of("node-7", b"pin") == key
    assert len({key, identity.party_of("node-8", b"pin"), identity.party_of("node-7", b"another")}) == 3
    drawn("two\n")
    assert identity.party_of("node-7", b"pin") != key


def test_a_party_is_as_long_as_a_name_that_is_shown() -> None:
    assert "…" not in clean("x" * 48)
    with pytest.raises(WireError):
        decode_to_master(encode(Join(Identity(PeerId("a"), 0, "", 1, 0, party=Party("x" * 49)))))
    assert "k" not in repr(Party("n", 2, KEY)).replace("key", "")
