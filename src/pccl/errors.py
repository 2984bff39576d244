"""The exceptions: the class says what to do next, the attributes carry the facts, the text names peer, phase and cause.

    PCCLError
    ├─ UsageError        fix your code or settings; raised before any byte moves
    │  ├─ CallMismatch            the peers made calls that cannot complete together
    │  └─ UnfinishedCollectives   wait for your handles first
    ├─ Retryable         the communicator lives, buffers are as they were: refresh the topology and try again
    │  ├─ CollectiveAborted(tag, lost_peers)
    │  ├─ TooFewPeers
    │  └─ SyncFailed     except for the chunks that were received: they are kept
    └─ MembershipLost    build a new Communicator and sync the shared state
       ├─ MasterLost   the master is gone or cannot be reached
       ├─ Refused      not admitted, and why
       ├─ Kicked       expelled, and why
       └─ ProtocolError

Owns the one place where outcomes of the core become exceptions. Must not know sockets, threads or the data plane.
"""

from collections.abc import Callable

from pccl.core.effects import Failure, FailureKind
from pccl.types import PeerId, Result


class PCCLError(Exception):
    """Base of everything this library raises on purpose.

    Scripts written for PCCL build it from a result code and the name of a call, and so may they here."""

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
    """The call is wrong as it stands: fix the code or the settings."""

    result = Result.INVALID_USAGE

    def __init__(self, reason: str, result: Result | None = None) -> None:
        super().__init__(reason)
        if result is not None:
            self.result = result


class CallMismatch(UsageError):
    """Peers made calls that can never complete together; the text says who waits for what."""


class UnfinishedCollectives(UsageError):
    """The call needs all collectives of this peer to be finished and waited for."""

    result = Result.PENDING_ASYNC_OPS


class Retryable(PCCLError):
    """The communicator lives and the buffers are as they were: try again."""


class CollectiveAborted(Retryable):
    """A collective ended without a result, on every peer alike. The group is already rewired: make the call again."""

    result = Result.RANK_CONNECTION_LOST

    def __init__(self, reason: str, tag: int | None, lost_peers: tuple[PeerId, ...]) -> None:
        super().__init__(reason)
        self.tag = tag
        self.lost_peers = lost_peers


class TooFewPeers(Retryable):
    """The group has fewer than two peers: there is nobody to reduce with."""

    result = Result.TOO_FEW_PEERS


class SyncFailed(Retryable):
    """This peer does not hold what the group elected; the text says why. What was received so far is kept in the
    tensors, chunk by chunk verified, and the next call fetches only the rest."""

    result = Result.INVALID_USAGE


class MembershipLost(PCCLError):
    """This communicator is out of the run: build a new one and sync the shared state."""

    result = Result.RANK_CONNECTION_LOST


class MasterLost(MembershipLost):
    """The master is gone, or could not be reached."""

    result = Result.MASTER_CONNECTION_FAILED


class Refused(MembershipLost):
    """The master did not admit this peer."""

    result = Result.MASTER_CONNECTION_FAILED


class Kicked(MembershipLost):
    """The master expelled this peer."""


class ProtocolError(MembershipLost):
    """The other side speaks another protocol, another version of ours, or breaks its rules."""


_EXCEPTIONS: dict[FailureKind, Callable[[Failure], PCCLError]] = {
    FailureKind.USAGE: lambda f: UsageError(f.reason),
    FailureKind.TAG_IN_USE: lambda f: UsageError(f.reason, Result.INVALID_ARGUMENT),
    FailureKind.UNFINISHED_COLLECTIVES: lambda f: UnfinishedCollectives(f.reason),
    FailureKind.MISMATCH: lambda f: CallMismatch(f.reason),
    FailureKind.TOO_FEW_PEERS: lambda f: TooFewPeers(f.reason),
    FailureKind.ABORTED: lambda f: CollectiveAborted(f.reason, f.tag, f.lost),
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
