"""What a peer that returns reports, beside its `Resume`: what it knew last, in portions that fit into a frame.

A master that did not begin the run goes on from these reports alone (docs/recovery.md).
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from pccl.core.fields import CollectiveSpec, Count, Digest, Id, Lane, Number, ResultDigest, Tag

REPORT_RING, REPORT_LINKS, REPORT_ATTEMPTS, REPORT_OUTCOMES = 256, 16, 4, 512
"""Entries of each kind in one `ReportPart`: 17, 6, 26 and twice 5 KiB when all that can be long is."""


class LinkReport(Struct, frozen=True):
    """One link that stands at the end of a peer that returns."""

    number: Number
    peer: Id
    dial: bool
    """It was I who dialled."""
    lanes: Annotated[int, Meta(ge=1, le=1024)]
    round_trip_us: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """As in `LinkUp`."""


class AttemptReport(Struct, frozen=True):
    """One collective that has no outcome yet, as a peer that returns tells of it."""

    tag: Tag
    spec: CollectiveSpec
    attempt: Number = 0
    """0: I have voted, and received no start."""
    lanes: Annotated[tuple[Lane, ...], Meta(max_length=1024)] = ()
    over: bool = False
    """My part has ended ..."""
    cause: Annotated[str, Meta(max_length=256)] = ""
    """... and why without a result."""
    digest: ResultDigest = b""
    """As in `Done`."""
    lost: Annotated[tuple[Id, ...], Meta(max_length=32)] = ()
    """Those who took part and are in my ring no more; the first few of them."""


class Answered(Struct, frozen=True):
    """The last answers that a peer received to what all peers are asked, by number; 0 for none."""

    last_number: Count = 0
    """The highest number of anything that a master has sent me."""
    accepted_at: Number = 0
    """Answers with a number up to this one were given before I was accepted."""
    topology: Number = 0
    """The latest ballot on a topology that I know to be over."""
    updated: Number = 0
    """The last answer to `VoteTopology` that I received."""
    asked: Number = 0
    """The last answer to `AskPending` that I received, which was ..."""
    pending: bool = False


class Agreed(Struct, frozen=True):
    """A state that a group was told to be in step with."""

    attempt: Number
    revision: Number
    layout: Digest
    content: Digest
    ticket: ResultDigest = b""
    """As in `Synced`."""


class TransferReport(Enum):
    """Where my part in the transfer of a state is."""

    NONE = 0
    RUNNING = 1
    HELD = 2
    """Over: I hold what was elected."""
    FAILED = 3


class ReportPart(Struct, frozen=True, tag=True):
    """What else I knew last, in portions that fit into a frame."""

    ring: Annotated[tuple[Id, ...], Meta(max_length=REPORT_RING)] = ()
    links: Annotated[tuple[LinkReport, ...], Meta(max_length=REPORT_LINKS)] = ()
    """Those that stand at my end."""
    attempts: Annotated[tuple[AttemptReport, ...], Meta(max_length=REPORT_ATTEMPTS)] = ()
    """Collectives that I have called and that have no outcome yet."""
    committed: Annotated[tuple[Number, ...], Meta(max_length=REPORT_OUTCOMES)] = ()
    """Attempts whose outcome I know."""
    aborted: Annotated[tuple[Number, ...], Meta(max_length=REPORT_OUTCOMES)] = ()
    last: bool = False
    """There is no more."""


class Correction(Struct, frozen=True, tag=True):
    """A link that I reported has broken since. Sent at once while I wait to be taken back, so that no peer waits
    for the one at its other end; `LinkDown` follows in its turn."""

    link: Number


Report = ReportPart | Correction
