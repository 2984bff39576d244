"""A call that was interrupted (Ctrl-C) leaves its vote standing, and the next call of its kind takes it over."""

from pccl.core.effects.peer_effects import Failure, FailureKind, InSync, PeerEffect, Resolve, SendMaster
from pccl.core.effects.peer_events import Abandon, Call, FromMaster, MasterUp, SayGoodbye, SyncShared, UpdateTopology
from pccl.core.fields import Identity
from pccl.core.limits import PeerLimits
from pccl.core.messages.to_master import SyncEnded, SyncState, VoteTopology
from pccl.core.messages.to_peer import RefusedSync, StartSync, Synced, Topology, TopologyUpdated, Welcome
from pccl.core.peer.peer import Peer
from pccl.types import PeerId, SharedStateSyncStrategy


def accepted_peer(tags_max: int = 4096) -> Peer:
    peer = Peer(Identity(PeerId("a"), 0, "", 1, 0), PeerLimits())
    peer.handle(MasterUp(), 0.0)
    peer.handle(FromMaster(Welcome("run", tags_max)), 0.0)
    peer.handle(FromMaster(Topology(1, ("a", "b"), 2, 1, 2)), 0.0)
    return peer


def resolved(effects: list[PeerEffect]) -> list[int]:
    return [effect.call for effect in effects if isinstance(effect, Resolve)]


def test_an_interrupted_vote_is_cast_once_and_answers_the_next_caller() -> None:
    peer = accepted_peer()
    assert SendMaster(VoteTopology()) in peer.handle(Call(1, UpdateTopology()), 1.0)
    assert resolved(peer.handle(Abandon(1), 2.0)) == [1]
    assert SendMaster(VoteTopology()) not in peer.handle(Call(2, UpdateTopology()), 3.0)
    assert resolved(peer.handle(FromMaster(TopologyUpdated()), 4.0)) == [2]


def test_an_answer_that_nobody_waits_for_any_more_is_no_breach() -> None:
    peer = accepted_peer()
    peer.handle(Call(1, UpdateTopology()), 1.0)
    peer.handle(Abandon(1), 2.0)
    assert resolved(peer.handle(FromMaster(TopologyUpdated()), 3.0)) == []
    assert peer.accepted
    assert SendMaster(VoteTopology()) in peer.handle(Call(2, UpdateTopology()), 4.0)


def test_two_threads_in_the_same_call_are_told_so() -> None:
    peer = accepted_peer()
    peer.handle(Call(1, UpdateTopology()), 1.0)
    effects = peer.handle(Call(2, UpdateTopology()), 2.0)
    assert resolved(effects) == [2]
    assert SendMaster(VoteTopology()) not in effects


# ── syncs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

LAYOUT, MINE, ELECTED = bytes(16), b"mine".ljust(16), b"elected".ljust(16)
POPULAR, RECEIVE = SharedStateSyncStrategy.ENFORCE_POPULAR, SharedStateSyncStrategy.RECEIVE_ONLY


def sync(content: bytes = MINE, strategy: SharedStateSyncStrategy = POPULAR) -> SyncShared:
    return SyncShared(3, strategy, LAYOUT, content)


def votes(effects: list[PeerEffect]) -> list[bytes]:
    messages = [effect.message for effect in effects if isinstance(effect, SendMaster)]
    return [message.content for message in messages if isinstance(message, SyncState)]


def answers(effects: list[PeerEffect]) -> dict[int, object]:
    return {effect.call: effect.answer for effect in effects if isinstance(effect, Resolve)}


def interrupted_in_a_sync() -> Peer:
    peer = accepted_peer()
    assert votes(peer.handle(Call(1, sync()), 1.0)) == [MINE]
    assert resolved(peer.handle(Abandon(1), 2.0)) == [1]
    return peer


def test_the_same_sync_takes_over_the_vote_of_the_one_that_was_interrupted() -> None:
    peer = interrupted_in_a_sync()
    effects = peer.handle(Call(2, sync()), 3.0)
    assert (votes(effects), resolved(effects)) == ([], [])
    assert answers(peer.handle(FromMaster(Synced(7, 3)), 4.0)) == {2: InSync(7, 3)}


def test_a_sync_of_something_else_waits_until_the_interrupted_one_is_over_and_votes_then() -> None:
    peer = interrupted_in_a_sync()
    effects = peer.handle(Call(2, sync(MINE, RECEIVE)), 3.0)
    assert (votes(effects), resolved(effects)) == ([], [])
    effects = peer.handle(FromMaster(RefusedSync(False, "it did not reach all")), 4.0)
    assert (votes(effects), resolved(effects)) == ([MINE], [])
    assert answers(peer.handle(FromMaster(Synced(8, 3)), 5.0)) == {2: InSync(8, 3)}


def test_a_transfer_for_the_interrupted_one_is_declined_while_another_waits() -> None:
    peer = interrupted_in_a_sync()
    peer.handle(Call(2, sync(b"changed".ljust(16), RECEIVE)), 3.0)
    effects = peer.handle(FromMaster(StartSync(7, True, ("b",), 1, 4, LAYOUT, ELECTED)), 4.0)
    (ended,) = [effect.message for effect in effects if isinstance(effect, SendMaster)]
    assert isinstance(ended, SyncEnded)
    assert ended.cause
    assert votes(peer.handle(FromMaster(RefusedSync(False, "it did not reach all")), 5.0)) == [b"changed".ljust(16)]


def test_whoever_got_it_all_before_the_interrupt_is_in_step_with_the_others() -> None:
    peer = interrupted_in_a_sync()
    peer.handle(FromMaster(StartSync(7, True, ("b",), 1, 4, LAYOUT, ELECTED)), 2.5)
    assert votes(peer.handle(Call(2, sync(ELECTED, RECEIVE)), 3.0)) == []
    effects = peer.handle(FromMaster(Synced(7, 4)), 4.0)
    assert (votes(effects), answers(effects)) == ([], {2: InSync(7, 4)})


def test_the_one_that_waits_is_interrupted_or_lost_like_any_other() -> None:
    peer = interrupted_in_a_sync()
    peer.handle(Call(2, sync(ELECTED)), 3.0)
    assert resolved(peer.handle(Abandon(2), 4.0)) == [2]
    assert resolved(peer.handle(Call(3, sync(ELECTED)), 5.0)) == []
    answer = answers(peer.handle(Call(4, sync()), 6.0))[4]
    assert isinstance(answer, Failure)
    assert "another thread" in answer.reason
    given = answers(peer.handle(Call(5, SayGoodbye()), 7.0))
    assert isinstance(given[3], Failure)
    assert given[3].kind is FailureKind.CLOSED
    assert 5 in given
