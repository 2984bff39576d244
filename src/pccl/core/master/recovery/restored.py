"""A run as its peers report it to a master that did not begin it: `restore` returns this value, the master applies it.

Pure data: knows neither how it is found nor what is done with it.
"""

from msgspec import Struct

from pccl.core.fields import CollectiveSpec
from pccl.core.messages.to_master import SyncState, ToMaster
from pccl.core.messages.to_peer import ToPeer
from pccl.core.rules.ring import Pair
from pccl.types import PeerId


class Base(Struct, frozen=True):
    """What the master has of itself when it takes over a run."""

    name: str
    epoch: int
    number: int
    default_lanes: int


class RestoredLink(Struct, frozen=True):
    """A link that stands since the time of an earlier master: both ends report it."""

    group: int
    number: int
    ends: Pair
    dialler: PeerId
    round_trip_s: float
    lanes: int


class RestoredAttempt(Struct, frozen=True):
    """An attempt that has no outcome yet."""

    tag: int
    attempt: int
    lanes: tuple[int, ...]
    votes: dict[PeerId, CollectiveSpec]
    """Its participants that are here."""
    lost: tuple[PeerId, ...]
    unreported: tuple[PeerId, ...]
    digests: dict[PeerId, bytes]
    """Of the results of those that are done."""
    abort: str
    """Why it cannot be committed; empty if it goes on."""


class Restored(Struct, kw_only=True):
    """A run as its peers report it. What is sent to a peer is listed in the order in which it must arrive."""

    run: str
    name: str
    epoch: int
    number: int
    updated: int
    last_link: int
    rings: dict[int, tuple[PeerId, ...]]
    lanes: dict[int, int]
    lost: tuple[PeerId, ...]
    returned: tuple[PeerId, ...]
    """Members that have reported. The others never received that they had been accepted."""
    links: list[RestoredLink]
    agreed: dict[int, tuple[SyncState, tuple[PeerId, ...]]] = {}
    """By group, what was agreed on last, and which peers hold it."""
    attempts: list[RestoredAttempt] = []
    answers: list[tuple[tuple[PeerId, ...], ToPeer]] = []
    votes: list[tuple[PeerId, ToMaster]] = []
    odd: dict[PeerId, str] = {}
    """Members whose reports contradict those of others, and why they cannot stay."""
