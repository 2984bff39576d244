"""The exceptions: the class says what to do next, the attributes carry the facts, the text names peer, phase and cause.

    PCCLError
    ├─ UsageError        fix your code or settings; raised before any byte moves
    │  ├─ CallMismatch            the peers made calls that cannot complete together
    │  └─ UnfinishedCollectives   wait for your handles first
    ├─ Retryable         the communicator lives, buffers are as they were: refresh the topology and try again
    │  ├─ CollectiveAborted(tag, lost_peers)
    │  ├─ CollectiveTimedOut(tag, missing_peers)   also a TimeoutError
    │  ├─ TooFewPeers
    │  └─ SyncFailed     except for the chunks that were received: they are kept
    └─ MembershipLost    build a new Communicator and sync the shared state
       ├─ MasterLost   the master is gone or cannot be reached
       ├─ Refused      not admitted, and why
       ├─ Kicked       expelled, and why
       └─ ProtocolError

Owns the one place where outcomes of the core become exceptions, and what docs/errors.md says about each: the first
paragraph of a docstring, then "Cause:", "Remedy:" and, if the class has any, "Attributes:". Must not know sockets,
threads or the data plane.
"""

from collections.abc import Callable

from pccl.core.effects.peer_effects import Failure, FailureKind
from pccl.types import PeerId, Result


class PCCLError(Exception):
    """Base of everything this library raises on purpose.

    Cause: one of those below. Itself, when a committed result could not be copied to this peer's device; the other
    peers have it. Scripts written for PCCL also raise it themselves, from a result code and a call's name.

    Remedy: catch it to catch every error of this library; what to do depends on the class. After a result that was not
    delivered call `sync_shared_state`.

    Attributes: `result` is PCCL's result code for this failure.
    """

    result: Result = Result.INTERNAL_ERROR
    """PCCL's result code for this kind of failure."""

    def __init__(self, reason: str | int, func_name: str = "") -> None:
        if isinstance(reason, int):
            self.result = Result(reason)
            reason = f"{func_name or 'the call'} failed with error: {self.result.name}"
        super().__init__(reason)

    @staticmethod
    def check(result: int, func_name: str) -> None:
        """Raise unless this result code means success."""
        if result != Result.SUCCESS:
            raise PCCLError(result, func_name)


class UsageError(PCCLError):
    """The call is wrong as it stands; raised before any byte moves.

    Cause: a wrong setting or argument, a tag or memory that another collective uses, a call on a Communicator that is
    not connected or was closed, or a call from a forked child. Where a single argument is wrong, the result code is
    INVALID_ARGUMENT.

    Remedy: change the code or the settings as the text says; the same call would fail again.
    """

    result = Result.INVALID_USAGE

    def __init__(self, reason: str, result: Result | None = None) -> None:
        super().__init__(reason)
        if result is not None:
            self.result = result


class CallMismatch(UsageError):
    """Peers made calls that can never complete together; the text names the peers and the calls.

    Cause: peers of a group wait in different calls, or make the same call with different parameters: lengths, types,
    operations, codecs, roots, names of shared tensors.

    Remedy: let all peers make the same calls in the same order with the same parameters.
    """


class UnfinishedCollectives(UsageError):
    """The call needs all collectives of this peer to be finished; the text names the tags of those that are not.

    Cause: `update_topology` or `sync_shared_state` was called while collectives of this peer are in flight.

    Remedy: call `wait` on their handles first. `are_peers_pending` may be called while they run.
    """

    result = Result.PENDING_ASYNC_OPS


class Retryable(PCCLError):
    """The Communicator lives and the buffers are as they were.

    Cause: another peer or a link was lost, or no other peer is there.

    Remedy: make the same call again; call `update_topology` first if candidates wait.
    """


class CollectiveAborted(Retryable):
    """A collective ended without a result, on every peer alike. The inputs are as they were.

    Cause: a peer of the group died or left, or a link between two peers broke, while the collective ran; or the results
    differ between peers, because one has bad memory or sent its neighbours different things: the text says which peers
    have which.

    Remedy: make the same call again, at once: the group has been rewired without the lost peers. Or pass `retry=True`
    on all peers, and the library does it. Where results differ again and again, `pccl kick` the peer at fault.

    Attributes: `tag` of the collective, None if there is none; `lost_peers`, the ids of the peers that are gone.
    """

    result = Result.RANK_CONNECTION_LOST

    def __init__(self, reason: str, tag: int | None, lost_peers: tuple[PeerId, ...]) -> None:
        super().__init__(reason)
        self.tag = tag
        self.lost_peers = lost_peers


class CollectiveTimedOut(Retryable, TimeoutError):
    """A collective had not started within the `timeout` of its call. This peer's vote is taken back.

    Cause: not all peers of the group have called it; the message names those, and the calls in which they wait.

    Remedy: make the call again: the peers that have called it wait for this one. If a peer waits in another call, all
    peers must make the same calls in the same order.

    Attributes: `tag` of the collective, None if there is none; `missing_peers`, the ids of the peers that did not call.
    """

    result = Result.RANK_CONNECTION_FAILED

    def __init__(self, reason: str, tag: int | None, missing_peers: tuple[PeerId, ...]) -> None:
        super().__init__(reason)
        self.tag = tag
        self.missing_peers = missing_peers


class TooFewPeers(Retryable):
    """The group has fewer than two peers, so a collective has no other peer to reduce with.

    Cause: this peer is alone in its group, or has become so while the collective ran.

    Remedy: use your own tensor, which is as it was; admit waiting candidates with `update_topology`.
    """

    result = Result.TOO_FEW_PEERS


class SyncFailed(Retryable):
    """This peer does not hold the shared state that the group elected; the text says why.

    Cause: all peers that hold the elected state were lost while this peer fetched it, or the transfer was interrupted.

    Remedy: make the same call again. Chunks that were received are verified and stay in the tensors; the next call
    fetches only the rest. If no peer that holds the state is left, load a checkpoint and set `revision`.
    """

    result = Result.INVALID_USAGE


class MembershipLost(PCCLError):
    """This Communicator is out of the run.

    Cause: the master is lost, did not admit this peer or expelled it.

    Remedy: build a new Communicator, connect, and call `sync_shared_state`; your own tensors are as they were.
    """

    result = Result.RANK_CONNECTION_LOST


class MasterLost(MembershipLost):
    """The master cannot be reached, or has not come back.

    Cause: `connect` found no master at the address in all its attempts (five by default, a second apart), or the
    connection was lost and no master answered for `master_timeout_s` (300 s).

    Remedy: start `pccl master` at the same address and check that this machine can dial it; then build a new
    Communicator.
    """

    result = Result.MASTER_CONNECTION_FAILED


class Refused(MembershipLost):
    """The master did not admit this peer; the text says why.

    Cause: this peer and one of its future neighbours could not dial each other in either direction, it did not answer
    the master for `candidate_silence_s` in its trial or `silence_s` before, the run is full (`peers_max`) or too many
    candidates wait, its lanes differ from the others' (their number, `lane_tls`), its token may not join, or it does
    not fit into the party that it names (`party_size`, `peer_group`).

    Remedy: do what the text says, usually open the port of one of the two peers or set `announce`; then try again.
    """

    result = Result.MASTER_CONNECTION_FAILED


class Kicked(MembershipLost):
    """The master expelled this peer; the text says why. The other peers go on without it.

    Cause: the process was stopped, or its machine or network was down, for longer than `silence_s` while others waited,
    or than `connection_dead_s`; the run went on without it while it was away, or an earlier run came back; it and
    another peer could not reach each other; it broke the protocol or sent too much; its token was revoked; an operator
    removed it (`pccl kick`); others waited for its vote for longer than `vote_timeout_s`, where the master has such a
    limit; or another peer of its party is gone, for one of these reasons, by a crash or a goodbye: the text says which.

    Remedy: build a new Communicator, connect, and call `sync_shared_state`. If it happens while you debug, raise these
    limits.
    """


class ProtocolError(MembershipLost):
    """The other side speaks another protocol, another version of ours, or breaks its rules.

    Cause: another program listens at the master's address, master and peers have different versions, or there is a bug.

    Remedy: check the address and install the same version everywhere; if both are right, report it with both logs.
    """


_EXCEPTIONS: dict[FailureKind, Callable[[Failure], PCCLError]] = {
    FailureKind.USAGE: lambda f: UsageError(f.reason),
    FailureKind.TAG_IN_USE: lambda f: UsageError(f.reason, Result.INVALID_ARGUMENT),
    FailureKind.UNFINISHED_COLLECTIVES: lambda f: UnfinishedCollectives(f.reason),
    FailureKind.MISMATCH: lambda f: CallMismatch(f.reason),
    FailureKind.TOO_FEW_PEERS: lambda f: TooFewPeers(f.reason),
    FailureKind.ABORTED: lambda f: CollectiveAborted(f.reason, f.tag, f.lost),
    FailureKind.TIMED_OUT: lambda f: CollectiveTimedOut(f.reason, f.tag, f.lost),
    FailureKind.REFUSED: lambda f: Refused(f.reason),
    FailureKind.KICKED: lambda f: Kicked(f.reason),
    FailureKind.MASTER_LOST: lambda f: MasterLost(f.reason),
    FailureKind.PROTOCOL: lambda f: ProtocolError(f.reason),
    FailureKind.SYNC_FAILED: lambda f: SyncFailed(f.reason),
    FailureKind.CLOSED: lambda f: UsageError(f.reason),
}


def to_exception(failure: Failure) -> PCCLError:
    """The exception for a failed call."""
    return _EXCEPTIONS[failure.kind](failure)
