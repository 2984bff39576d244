"""What the master's parts have in common, so that the master keeps one list of them and asks each the same questions.

A part owns one subject and overrides what concerns it; the answers here are those of a part that has nothing to do. No
part knows the master: what it may make happen to members and to the run it asks of the `Door`.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from pccl.core.limits import MasterLimits
from pccl.core.master.outbox import Outbox
from pccl.core.master.recovery.restored import Restored
from pccl.core.master.roster import Member, Roster
from pccl.core.master.tickets import NO_KEYS, Keys, Tickets
from pccl.core.messages.to_peer import Kick, Welcome
from pccl.types import PeerId


class Lead:
    """Which run this master leads, and under which name."""

    def __init__(self, run: str, follows: bool, release: str = "", keys: Keys = NO_KEYS) -> None:
        self.tickets = Tickets(keys)
        self.release = release
        """Of the library."""
        self.run = self._first = run
        """Chosen for the first of its masters; the next ones take it over."""
        self.name = run
        """Of this master alone, and another one whenever a run comes back to it, or ends: a peer that was with it
        before has to receive what happened since, and does not go on as if only its connection had broken."""
        self.follows = follows
        """There may have been another master at this address, whose peers come back."""

    def end(self, epoch: int) -> None:
        """The run has ended: what begins next is another one."""
        self.name = self.run = f"{self._first}_{epoch}"

    def welcome(self, tags_max: int) -> Welcome:
        """What a candidate or a visitor receives of it."""
        return Welcome(self.run, tags_max, self.name)


class Departure(Struct, frozen=True):
    """A member is gone."""

    member: Member
    how: str
    now: float
    back_until: float = 0.0
    """It may come back until then, though its place is not kept: no other run begins instead of its own."""
    accepted: bool = False
    """It was on the roster, not a candidate, a visitor or one that came back."""
    tried: bool = False
    """It was a candidate in its trial."""
    event: str = "lost"
    """Or `left`, or `kicked`."""

    @property
    def peer(self) -> PeerId:
        """The peer that is gone."""
        return self.member.peer


class Wait(Struct, frozen=True):
    """Peers wait for something; without any of them it is the master that waits."""

    waiting: tuple[PeerId, ...]
    sentence: str
    since: float
    call: str = ""
    """In which call they wait."""
    missing: tuple[PeerId, ...] = ()
    """For which peers, as far as it is peers."""
    outside: str = ""
    """The sentence for those of them that are not accepted, if theirs is another one."""
    works: bool = False
    """Bytes move: no call of a peer is waited for."""
    until: float | None = None
    """When it ends at the latest; None if it does not end as long as they answer pings."""


class Door(Protocol):
    """What only the master can do, since it concerns all parts."""

    def expel(self, member: Member, kick: Kick, now: float) -> None:
        """Kick an accepted peer or refuse a candidate; either way it learns why."""

    def remove(self, *gone: Departure) -> None:
        """These members are gone by themselves."""

    def go_on_with(self, restored: Restored, now: float) -> None:
        """Lead the run that these peers have reported."""


class Common(Struct, frozen=True):
    """What all parts use."""

    roster: Roster
    outbox: Outbox
    limits: MasterLimits
    lead: Lead
    door: Door


class Part:
    """One subject of the master."""

    def __init__(self, common: Common) -> None:
        self._roster = common.roster
        self._outbox = common.outbox
        self._limits = common.limits
        self._lead = common.lead
        self._door = common.door

    def advance(self, now: float) -> bool:
        """Do what the last event made possible. True if that may have made more possible for other parts."""
        return False

    def forget(self, gone: Sequence[Departure]) -> None:
        """These members are gone, and off the roster: leave every ballot, ring and trial without them."""
        for each in gone:
            self.lose(each)

    def lose(self, gone: Departure) -> None:
        """One of them."""

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """The master stood still for this long: what others sent meanwhile is still unread, so all deadlines move."""

    def next_deadline(self) -> float | None:
        """When `advance` has something to do though nothing happened."""
        return None

    def waits(self) -> list[Wait]:
        """Which peers wait, for what, and since when."""
        return []

    def waited_for(self) -> Iterable[PeerId]:
        """The peers whose next message others wait for: they are pinged, and judged by their silence."""
        return ()


def those_with(parts: Sequence[Part], method: str) -> tuple[Part, ...]:
    """The parts with such a method of their own: every event asks, and most would answer that there is nothing."""
    return tuple(part for part in parts if getattr(type(part), method) is not getattr(Part, method))
