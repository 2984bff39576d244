"""What a peer sends to its master, one frozen struct each."""

from typing import Annotated

from msgspec import Meta, Struct

from pccl.core.fields import (
    CollectiveSpec,
    Count,
    Digest,
    Flow,
    Identity,
    Name,
    Number,
    ResultDigest,
    Run,
    Tag,
    Text,
    Ticket,
)
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.observers import AskProbe, AskStatus, KickPeer
from pccl.core.messages.report import Agreed, Answered, Report, TransferReport
from pccl.types import SharedStateSyncStrategy


class Join(Struct, frozen=True, tag=True):
    """First message of a control connection: who I am and where my future neighbours can dial me."""

    me: Identity
    dial: Number = 0
    """Running number of my connections. What arrives late on a connection that I have given up has a lower one."""


class SyncState(Struct, frozen=True, tag=True):
    """`sync_shared_state`: my vote, and what I hold."""

    revision: Number
    strategy: SharedStateSyncStrategy
    layout: Digest
    """Of names, types and lengths of all entries."""
    content: Digest
    """Of the layout and the content of all entries that must be equal."""
    torn: bool = False
    """What I hold is a mixture of two states, left by a transfer that did not end: I offer it to no other peer."""

    @property
    def state(self) -> tuple[int, bytes, bytes]:
        """What is compared."""
        return self.revision, self.layout, self.content


class SyncReport(Struct, frozen=True):
    """The shared state of a peer that returns."""

    agreed: Agreed | None = None
    """The last state that I was told to be in step with."""
    claim: SyncState | None = None
    """I wait in `sync_shared_state`, ..."""
    transfer: TransferReport = TransferReport.NONE
    """... and was told to pull or serve."""


class Resume(Struct, frozen=True, tag=True):
    """First message of a connection in place of one that was lost: I am on the roster, and this is what I knew last.

    `ReportPart`s follow. A master without a roster goes on with the run that such peers report."""

    me: Identity
    run: Run
    epoch: Count
    global_size: Number
    last_link: Count
    answered: Answered = Answered()
    updating: bool = False
    """I wait in `update_topology`."""
    asking: bool = False
    """I wait in `are_peers_pending`."""
    sync: SyncReport = SyncReport()
    dial: Number = 0
    """As in `Join`."""
    master: Name = ""
    """The name of the last master that took me in, ..."""
    received: Number = 0
    """... and how many of its messages I have received."""
    sent: Number = 0
    """The number of my last message before this one. All messages but those that begin or end a connection, or are
    about the moment only, are numbered, from my `Join` on."""
    ticket: Ticket | None = None
    """Of the last epoch that I received."""


class Fetch(Struct, frozen=True, tag=True):
    """`prefetch_shared_state`: let me, a visitor, pull what my group last agreed on while it goes on."""


class VoteTopology(Struct, frozen=True, tag=True):
    """`update_topology`: I agree to admit the candidates that wait."""


class AskPending(Struct, frozen=True, tag=True):
    """`are_peers_pending`: my vote to be told whether candidates wait."""


class Initiate(Struct, frozen=True, tag=True):
    """My vote to run the collective `tag` with exactly these parameters."""

    tag: Tag
    spec: CollectiveSpec
    parcel: Number = 0
    """Number of the parcel in which my whole contribution is on its way to all other peers of the group; 0 for none."""


class Done(Struct, frozen=True, tag=True):
    """My part of this attempt is complete; I hold both input and result until the outcome is known."""

    tag: Tag
    attempt: Number
    digest: ResultDigest = b""
    """Of the result, which must be the same at all peers."""
    flow: Flow = Flow()
    """On the lanes to my next peer."""


class Failed(Struct, frozen=True, tag=True):
    """My part of this attempt has stopped without a result; also the answer to `Abort`."""

    tag: Tag
    attempt: Number
    cause: Text


class Withdraw(Struct, frozen=True, tag=True):
    """My time for these collectives, of one call, is over: if none has started, my votes do not count any more."""

    tags: Annotated[tuple[Tag, ...], Meta(min_length=1, max_length=64)]
    """A call has one for each type of element; all or none, since what was committed of it counts for the others."""


class SyncEnded(Struct, frozen=True, tag=True):
    """My part in the transfer is over: I have what was elected, or have served it, or failed (`cause`)."""

    attempt: Number
    cause: Text
    flow: Flow = Flow()
    """On the lanes over which I served."""


class LinkUp(Struct, frozen=True, tag=True):
    """All lanes of this link stand at my end."""

    link: Number
    round_trip_us: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """How long a packet takes there and back, from the end that dialled; 0 when that is not known."""


class LinkDown(Struct, frozen=True, tag=True):
    """This link could not be made, or stood and broke; I have closed what was there of it."""

    link: Number
    cause: Text


class Leave(Struct, frozen=True, tag=True):
    """Goodbye."""


First = Join | Resume
ToCollectives = Initiate | Withdraw | Done | Failed
ToSync = SyncState | SyncEnded
ToLinks = LinkUp | LinkDown
FromObserver = AskStatus | AskProbe | KickPeer
"""First messages of a connection, what follows a `Resume`; and others, by the part of the master that they are for."""
FromPeer = First | Report | Fetch | VoteTopology | AskPending | ToCollectives | ToSync | ToLinks | Leave | Ping | Pong
ToMaster = FromPeer | FromObserver
