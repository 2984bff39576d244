"""What a master with a secret believes of peers that come back from another one: what a master has signed, no more."""

import hmac

import pytest
from msgspec import structs

from pccl.core.fields import Identity, KickKind
from pccl.core.master.tickets import BEYOND_MAX, NO_KEYS, Keys, Tickets
from pccl.core.messages.report import Agreed, Answered, ReportPart
from pccl.core.messages.to_master import Join, Resume, SyncReport, SyncState
from pccl.core.messages.to_peer import Kick, Synced, Topology, Welcome
from pccl.types import SharedStateSyncStrategy
from pccl.wire.codec import encode
from tests.unit.scripted_master import LIMITS, RING, Stage, taken_back


def keys(secret: bytes = b"the secret") -> Keys:
    return Keys(sign=lambda statement: hmac.digest(secret, statement, "sha256")[:16])


def a_run(**arguments: object) -> tuple[Resume, tuple[str, ...]]:
    """Anna is alone in a run, and has synced; what she would report, and her ring."""
    stage = Stage(keys=keys(), **arguments)
    me = Identity("anna", 0, "10.0.0.1", 1, 1, secret="hers")
    stage.send(0, Join(me))
    stage.send(0, SyncState(3, SharedStateSyncStrategy.ENFORCE_POPULAR, b"l" * 16, b"c" * 16))
    welcome, topology, synced = (stage.last(0, kind) for kind in (Welcome, Topology, Synced))
    assert isinstance(welcome, Welcome)
    assert isinstance(topology, Topology)
    assert isinstance(synced, Synced)
    agreed = Agreed(synced.attempt, synced.revision, b"l" * 16, b"c" * 16, synced.ticket)
    resume = Resume(
        me=me,
        run=welcome.run,
        epoch=topology.epoch,
        global_size=topology.global_size,
        last_link=0,
        answered=Answered(last_number=synced.attempt, accepted_at=topology.number, topology=topology.number),
        sync=SyncReport(agreed=agreed),
        dial=1,
        master=welcome.master,
        received=2,
        ticket=topology.ticket,
    )
    return resume, topology.ring


def report(resume: Resume, ring: tuple[str, ...], secret: bytes = b"the secret") -> Stage:
    """A master that knows nothing, and what becomes of such a report."""
    stage = Stage(keys=keys(secret), follows=True)
    stage.send(0, resume, ReportPart(ring=ring, last=True))
    stage.wait(LIMITS.newborn_s)
    return stage


def test_what_a_master_has_signed_is_believed() -> None:
    resume, ring = a_run()
    stage = report(resume, ring)
    assert taken_back(stage) == [0]
    assert stage.master.lead.run == resume.run


INVENTIONS = {
    "another run": {"run": "another_one"},
    "a higher epoch": {"epoch": 2},
    "an epoch without end": {"epoch": 2**61},
    "another size": {"global_size": 1000},
    "no ticket": {"ticket": None},
}


@pytest.mark.parametrize("what", INVENTIONS)
def test_what_was_invented_is_not(what: str) -> None:
    resume, ring = a_run()
    stage = report(structs.replace(resume, **INVENTIONS[what]), ring)
    kick = stage.last(0, Kick)
    assert isinstance(kick, Kick)
    assert kick.kind is KickKind.UNSIGNED
    assert "Build a new Communicator" in kick.reason
    assert taken_back(stage) == []
    # Nobody waits for such a run: what joins begins one at once, as soon as that master is old enough.
    stage.send(1, Join(Identity("bert", 0, "", 2, 0)))
    stage.wait(LIMITS.newborn_s + 0.1)
    assert isinstance(stage.last(1, Topology), Topology)


@pytest.mark.parametrize("what", INVENTIONS)
def test_without_a_secret_all_of_it_is_believed(what: str) -> None:
    """So the attack is one."""
    resume, ring = a_run()
    stage = Stage(follows=True)
    stage.send(0, structs.replace(resume, **INVENTIONS[what]), ReportPart(ring=ring, last=True))
    stage.wait(LIMITS.silence_s + 1.0)
    assert taken_back(stage) == [0]


@pytest.mark.parametrize("ring", [(), ("anna", "bert"), ("bert", "anna"), RING])
def test_another_ring_than_the_signed_one(ring: tuple[str, ...]) -> None:
    resume, _ = a_run()
    stage = report(resume, ring)
    assert taken_back(stage) == []
    assert isinstance(stage.last(0, Kick), Kick)


def test_another_group_and_another_identity() -> None:
    """The ring of a ticket has the ids of its members, and an id cannot be had without its secret (`security`)."""
    resume, ring = a_run()
    for me in (structs.replace(resume.me, group=1), structs.replace(resume.me, peer="mallory")):
        assert taken_back(report(structs.replace(resume, me=me), ring)) == []


@pytest.mark.parametrize("beyond", [BEYOND_MAX + 10, 2**62])
def test_numbers_far_beyond_the_ticket(beyond: int) -> None:
    """One report could otherwise use up the numbers that there are: no honest peer could report those that follow."""
    resume, ring = a_run()
    answered = structs.replace(resume.answered, last_number=beyond)
    for lie in ({"answered": answered}, {"last_link": beyond}):
        kick = report(structs.replace(resume, **lie), ring).last(0, Kick)
        assert isinstance(kick, Kick)
        assert "numbers far beyond" in kick.reason


@pytest.mark.parametrize("lie", [{"revision": 9}, {"attempt": 0}, {"content": b"x" * 16}, {"ticket": b""}])
def test_a_state_that_was_not_agreed_on(lie: dict[str, object]) -> None:
    """A guest without the right to bring a state would have one, as of the next master."""
    resume, ring = a_run()
    assert resume.sync.agreed is not None
    agreed = structs.replace(resume.sync.agreed, **lie)
    kick = report(structs.replace(resume, sync=SyncReport(agreed=agreed)), ring).last(0, Kick)
    assert isinstance(kick, Kick)
    assert "signed the state" in kick.reason


def test_a_master_with_another_secret_has_signed_nothing() -> None:
    resume, ring = a_run()
    assert taken_back(report(resume, ring, b"another secret")) == []


def test_a_young_run_does_not_give_way_to_an_invented_one() -> None:
    stage = Stage(keys=keys(), follows=True)
    stage.send(0, Join(Identity("bert", 0, "", 2, 0)))
    stage.wait(LIMITS.newborn_s + 0.1)
    assert isinstance(stage.last(0, Topology), Topology)
    resume, ring = a_run()
    stage.send(1, structs.replace(resume, run="grand", global_size=1000), ReportPart(ring=ring, last=True))
    stage.wait(LIMITS.silence_s + 1.0)
    assert isinstance(stage.last(1, Kick), Kick)
    assert stage.last(0, Kick) is None


def test_a_ticket_is_short_and_the_same_for_all() -> None:
    """A roster of a thousand goes out once, as before; what is signed of it takes some 60 bytes."""
    ring = tuple(f"{number:032x}" for number in range(1000))
    topology = Topology(7, ring, 1000, 1, 1000)
    signed = Tickets(keys()).issue("run", 0, topology, (2**40, 2**40), 1.8e9)
    assert 0 < len(encode(signed)) - len(encode(topology)) < 100
    assert Tickets(NO_KEYS).issue("run", 0, topology, (1, 1), 0.0) is topology
