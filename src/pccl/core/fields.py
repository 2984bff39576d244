"""What messages are made of: bounded types, and the structs that are part of several messages.

Bounds exist so that a hostile sender cannot make the receiver allocate or print much; each is far above what an honest
one needs.
"""

import hmac
from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from pccl.core.limits import PARTY_SIZE_MAX, THREADS_MAX
from pccl.types import CollectiveKind, DataType, PeerId, ReduceOp

Id = Annotated[PeerId, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_-]+\Z")]
"""Ids end up in sentences and on terminals, so nothing that could play tricks there is allowed in one."""
Run = Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_-]+\Z")]
"""The name of a run; as for ids."""
Secret = Annotated[str, Meta(max_length=64)]
"""Never shown; empty for none."""
Name = Annotated[str, Meta(max_length=64)]
"""Of a master: no other one has it. Empty while it is not known."""
Text = Annotated[str, Meta(max_length=4096)]
"""A sentence for a person; 4096 characters hold the names of a hundred peers."""
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Tag = Annotated[int, Meta(ge=0)]
"""Of a user below 2^63, of a part of a call up to 2^64 - 1, where the integers of MessagePack end."""
Count = Annotated[int, Meta(ge=0, le=2**62)]
"""A number beyond which others are to be given."""
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]
ResultDigest = Annotated[bytes, Meta(max_length=16)]
"""Of the result of a collective; empty where peers have different ones by design, or where none is made."""
Pin = Annotated[bytes, Meta(max_length=32)]
"""SHA-256 of the certificate by which others know a peer on its lanes; empty in a run without security."""
LaneTls = Literal["", "on", "off"]
"""Whether the bytes of a peer's lanes are sealed (`lane_tls`); empty in a run without security."""
LinkKey = Annotated[bytes, Meta(max_length=32)]
"""By which both ends of a link prove each other that the master has sent them; empty in a run without security."""
Lane = Annotated[int, Meta(ge=0, le=1024)]
"""The highest is the express lane of a link with as many others as there may be."""
LaneCount = Annotated[int, Meta(ge=0, le=1024)]
"""1,024 connections to one neighbour are four times what PCCL's authors needed for 45 Gbit/s over a continent."""
ThreadCount = Annotated[int, Meta(ge=1, le=THREADS_MAX)]
SEGMENT_BYTES_MAX = 16 * 1024 * 1024
"""The data plane accepts no longer segment, from any peer."""
SegmentBytes = Annotated[int, Meta(ge=8, le=SEGMENT_BYTES_MAX)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Host = Annotated[str, Meta(max_length=255, pattern=r"\A[0-9A-Za-z._:%-]*\Z")]
"""A name, an IPv4 or an IPv6 address; 255 is the longest name DNS allows."""


PeerName = Annotated[str, Meta(max_length=64)]
"""Of a peer, for people; any text, so it is cleaned (`names.clean`) before it is kept or shown."""


def same_secret(first: Secret, second: Secret) -> bool:
    """Compared in a time that does not depend on where they differ: one of them is what a stranger tries."""
    return hmac.compare_digest(first.encode(), second.encode())


def whole(**values: bytes) -> None:
    """A pin or a key is there or not: part of one is none. Raises `ValueError`, which decoding reports as its own."""
    for name, value in values.items():
        if len(value) not in (0, 32):
            raise ValueError(f"{name} must have 32 bytes or none, got {len(value)}")


Milliseconds = Annotated[int, Meta(ge=0, le=2**48)]
Microseconds = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Flow(Struct, frozen=True):
    """What a peer's kernel counted on the lanes to its next peer while they were lent, of all of them together. Nothing
    but the number of lanes follows from it; zeros where the kernel does not tell."""

    sent: Count = 0
    """Bytes that arrived."""
    resent: Count = 0
    """Bytes that were sent again, since they or what tells of them were lost."""
    held_ms: Milliseconds = 0
    """How long the lanes were lent, ..."""
    busy_ms: Milliseconds = 0
    """... had something to send, ..."""
    limited_ms: Milliseconds = 0
    """... and were held up by a buffer at either end."""
    shortest_us: Microseconds = 0
    """The shortest round trip of any of them, ..."""
    smoothed_us: Microseconds = 0
    """... and the mean of what it was last, which is longer where a queue stands."""

    def __add__(self, other: "Flow") -> "Flow":
        """Of both, one after or beside the other."""
        shortest = [each.shortest_us for each in (self, other) if each.shortest_us]
        return Flow(
            self.sent + other.sent,
            self.resent + other.resent,
            self.held_ms + other.held_ms,
            self.busy_ms + other.busy_ms,
            self.limited_ms + other.limited_ms,
            min(shortest, default=0),
            max(self.smoothed_us, other.smoothed_us),
        )


class Concealing(Struct, frozen=True):
    """Of which no `repr` shows what only its holders may know: it may end up in a log or in a traceback."""

    def __repr__(self) -> str:
        shown = [
            f"{name}={'…' if name in ('secret', 'key') and value else repr(value)}"
            for name in self.__struct_fields__
            for value in (getattr(self, name),)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


class Label(Struct, frozen=True):
    """What people know a peer by. No decision follows from it."""

    name: PeerName = ""
    """Empty: it has none, and is called by the first digits of its id."""
    machine: PeerName = ""
    """What its machine calls itself."""
    pid: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    release: Annotated[str, Meta(max_length=32)] = ""
    """Of the library."""
    process: Annotated[str, Meta(max_length=32, pattern=r"\A[0-9A-Za-z]*\Z")] = ""
    """Drawn once for each process: two peers that have the same are two Communicators of one process."""


class Party(Concealing, frozen=True):
    """The peers of one machine, such as its local ranks: admitted together or not at all, and gone together."""

    name: Annotated[str, Meta(max_length=48)] = ""
    """As long as a name is shown (`names.NAME_MAX`). Empty: the peer is a party of its own."""
    size: Annotated[int, Meta(ge=1, le=PARTY_SIZE_MAX)] = 1
    key: Annotated[bytes, Meta(max_length=32)] = b""
    """What the processes of one machine alone know, and send to masters only: a peer elsewhere that claims the name is
    of another party. Empty where a machine has no such thing: then the name is all."""

    def __post_init__(self) -> None:
        whole(key=self.key)

    @property
    def which(self) -> tuple[str, bytes]:
        """Which one is meant: the same for what its peers should have called the same."""
        return self.name, self.key


class Identity(Concealing, frozen=True):
    """Who a peer is and where its future neighbours can dial it; the same over its whole membership."""

    peer: Id
    group: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    host: Host
    """Empty: use the address that the master sees me come from."""
    port: Port
    lanes: LaneCount
    """Lanes per neighbour that I ask for; 0 leaves it to the group."""
    visits: bool = False
    """I am a visitor: no candidate, only here to `Fetch`."""
    serves: bool = True
    """I let visitors have my shared state beside my other work."""
    secret: Secret = ""
    """By which a master knows me again after my connection broke; drawn by me and sent to no other peer. Empty: it
    does not."""
    label: Label = Label()
    pin: Pin = b""
    lane_tls: LaneTls = ""
    party: Party = Party()
    lanes_max: LaneCount = 0
    """Lanes to a neighbour that the descriptors of my process allow; 0: no more than are asked for."""
    threads: ThreadCount = 1
    """That I have for one collective."""

    def __post_init__(self) -> None:
        whole(pin=self.pin)


class CollectiveSpec(Struct, frozen=True):
    """What the peers of a group must agree on before a collective moves a byte."""

    count: Number
    dtype: DataType
    op: ReduceOp
    codec: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_.-]*\Z")] = "none"
    layout: Annotated[str, Meta(max_length=16, pattern=r"\A[0-9A-Za-z]*\Z")] = ""
    """A digest of how the elements are divided among several tensors; empty for a single one. Without it peers that
    pass different tensors of the same total would add what does not belong together."""
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    root: Annotated[PeerId, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_-]*\Z")] = PeerId("")
    """The id of the peer whose tensor a broadcast spreads; empty for every other kind."""

    def __str__(self) -> str:
        root = f" from {self.root[:8]}" if self.root else ""
        layout = f" layout={self.layout}" if self.layout else ""
        if self.layout.startswith("gather"):
            layout = f" layout={self.layout.removeprefix('gather')}, with gather="
        return f"{self.kind.name}{root} {self.count} x {self.dtype.name} {self.op.name} codec={self.codec}{layout}"


class LinkSpec(Concealing, frozen=True):
    """One link that a peer shall have: all lanes between it and one neighbour, numbered as one thing."""

    number: Number
    peer: Id
    dial: bool
    """True at exactly one end: this end opens the connections."""
    host: Host
    port: Port
    lanes: Annotated[int, Meta(ge=1, le=1024)]
    """Lanes that are lent to runs, numbered from 0. Every link has one more, of the next number: the express lane."""
    pin: Pin = b""
    """Of the peer at the other end."""
    key: LinkKey = b""
    """The same at both ends, and another one for each number."""

    def __post_init__(self) -> None:
        whole(pin=self.pin, key=self.key)


class Ticket(Struct, frozen=True):
    """What a master has signed of an epoch, for the members of one group: run, group, epoch, size, and this."""

    number: Count
    """The latest attempt or answer, ..."""
    link: Count
    """... and the latest link, of those that there were then."""
    issued_at: Count
    """In milliseconds, by the clocks of masters: of two tickets the later one was issued later, also by two masters."""
    ring: Digest
    """Of the group's ring; no digest that others could compute."""
    seal: Digest
    """Of all of it."""


class KickKind(Enum):
    """Why a peer is put out, or not let in."""

    PROTOCOL = 0
    """It broke the protocol, or what it reported contradicts what others report."""
    SILENT = 1
    UNREACHABLE = 2
    """It and another peer cannot dial each other."""
    IDLE = 3
    """A visitor that asked for nothing."""
    FULL = 4
    LANES = 5
    """Its lanes cannot be like those of the others: another number of them, or sealed where the others' are not."""
    ID_TAKEN = 6
    REPLACED = 7
    """Another connection came with its identity and secret."""
    LATE = 8
    """The run has gone on without it."""
    OTHER_RUN = 9
    """This master leads another run."""
    DISPLACED = 10
    """An earlier run, which was led from this address before, has come back."""
    OPERATOR = 11
    """A person who operates the run put it out."""
    NO_RIGHT = 12
    """Its connection may not do what it asked for."""
    NOT_ONE = 13
    """What an operator called a peer means none, or several."""
    VOTELESS = 14
    """Others waited for its vote for longer than the master allows."""
    UNSIGNED = 15
    """It reports a run that no master with this secret has signed."""
    PARTY = 16
    """Another peer of its party is gone; or it does not fit into the party that it names."""
