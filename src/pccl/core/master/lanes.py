"""How many lanes the links of each group have: what its peers measured, what follows from it, and when that is done.

Owns the figures of what runs at the moment, and the number of each group whose users leave it to us. The number changes
only while nothing runs over the links of the group: they are then made again under new numbers, as after a break, and
no peer is blamed for what comes of it. Does not know collectives or transfers: see `User`. The rule itself is in
`rules/lanes.py`.

Rules: docs/protocol.md, "Lanes".
"""

from typing import Protocol

from msgspec import Struct

from pccl.core.effects.both import Note
from pccl.core.fields import Flow
from pccl.core.master.admission import Admission
from pccl.core.master.link import Link
from pccl.core.master.part import Common, Departure, Part
from pccl.core.master.roster import Member
from pccl.core.rules.lanes import LANES_MAX, Tuner, look
from pccl.core.status import LanesStatus
from pccl.types import PeerId


class User(Protocol):
    """What runs over links."""

    def moves(self, group: int) -> bool:
        """Something of it uses links of the group, or is about to."""

    def remade(self, link: Link) -> None:
        """What was on its way over this link is lost."""


class Burst(Struct):
    """What a group sends from when something begins until nothing runs."""

    began_at: float
    flows: dict[PeerId, Flow] = {}
    spoilt: bool = False
    """It tells nothing, nor does what began meanwhile."""


class Lanes(Part):
    """The numbers of all groups."""

    def __init__(self, common: Common, admission: Admission) -> None:
        super().__init__(common)
        self.users: list[User] = []
        self._admission = admission
        self._links = admission.links
        self._tuners: dict[int, Tuner] = {}
        self._bursts: dict[int, Burst] = {}
        self._stale: dict[int, None] = {}
        """Groups with links that may have another number than they shall have."""
        self._epoch = 0
        """As of which `_stale` is."""

    # ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, group: int, now: float) -> None:
        """Something begins to run over the links of a group."""
        if group not in self._bursts and not self._asked(group):
            self._bursts[group] = Burst(now)

    def add(self, member: Member, flow: Flow) -> None:
        """A peer has done its part of what runs."""
        burst = self._bursts.get(member.group)
        if burst is not None:
            burst.flows[member.peer] = burst.flows.get(member.peer, Flow()) + flow

    def spoil(self, group: int) -> None:
        """Something did not come to its end: its figures tell nothing."""
        if group in self._bursts:
            self._bursts[group].spoilt = True

    def lose(self, gone: Departure) -> None:
        """The ring is another one."""
        group = gone.member.group
        self.spoil(group)
        if not self._roster.ring(group):
            self._tuners.pop(group, None)
            self._stale.pop(group, None)

    # ── what follows ─────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> bool:
        """Judge what is over; make links again where nothing runs. (protocol.md, Lanes 2, 4)"""
        if self._epoch != self._roster.epoch:
            self._epoch = self._roster.epoch
            # Members are others now: rings have new links, whose windows are small; one of them may have asked for a
            # number, or have fewer descriptors.
            for tuner in [each for each in self._tuners.values() if not each.before]:
                tuner.looks = {}
            for group in list(self._links.widths.wide):
                self._stale[group] = None
                if self._asked(group):
                    del self._links.widths.wide[group]
                    self._tuners.pop(group, None)
        for group in list(self._links.widths.failed):
            self._narrow(group, now)
        for group in [group for group in self._bursts if not self._runs(group)]:
            self._judge(group, self._bursts.pop(group), now)
        for group in list(self._stale):
            self._widen(group, now)
        return False

    def _asked(self, group: int) -> bool:
        """A user has chosen the number. (protocol.md, Lanes 1)"""
        return any(self._roster.accepted[peer].lanes for peer in self._roster.ring(group))

    def _runs(self, group: int) -> bool:
        return any(user.moves(group) for user in self.users)

    def _judge(self, group: int, burst: Burst, now: float) -> None:
        seen = look(burst.flows.values(), self._links.ring_lanes(group), now - burst.began_at)
        ring = self._roster.ring(group)
        if burst.spoilt or seen is None or len(ring) < 2:
            return
        most = min(LANES_MAX, *(self._roster.accepted[peer].lanes_max for peer in ring))
        tuner = self._tuner(group)
        before = tuner.lanes
        tuner.lanes = max(tuner.least, min(before, most))
        reason = tuner.judge(seen, most, now)
        if tuner.lanes != before:
            self._choose(group, before, reason or "descriptors of a member")

    def _tuner(self, group: int) -> Tuner:
        least = self._roster.lanes[group]
        return self._tuners.setdefault(group, Tuner(self._links.widths.wide.get(group, least), least))

    def _narrow(self, group: int, now: float) -> None:
        """A link of so many lanes could not be made. (protocol.md, Lanes 5)"""
        del self._links.widths.failed[group]
        tuner = self._tuner(group)
        before = tuner.lanes
        tuner.give_up(now)
        self._choose(group, before, "a link of more could not be made")

    def _choose(self, group: int, before: int, why: str) -> None:
        tuner = self._tuners[group]
        tuner.reason = f"{before} → {tuner.lanes}: {why}"
        self._links.widths.wide[group] = tuner.lanes
        self._stale[group] = None
        self._outbox.note(Note(f"lanes of group {group}: {tuner.reason}", "lanes"))

    def _widen(self, group: int, now: float) -> None:
        """Between collectives and transfers, and not while newcomers are tried: their links count on this number."""
        if self._runs(group) or not self._links.stands(group) or self._admission.trial is not None:
            return
        del self._stale[group]
        for link in self._links.widen(group, now):
            for user in self.users:
                user.remade(link)

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def told(self) -> list[LanesStatus]:
        """Of all groups with links, as the status has it."""
        groups = [group for group, ring in self._roster.rings.items() if len(ring) > 1]
        return [LanesStatus(group, self._links.ring_lanes(group), self._reason(group)) for group in groups]

    def _reason(self, group: int) -> str:
        """Who chose the number, or what it follows from."""
        tuner, wide = self._tuners.get(group), group in self._links.widths.wide
        found = "as under an earlier master" if wide else "as a run begins"
        return "as its peers ask" if self._asked(group) else (tuner and tuner.reason) or found
