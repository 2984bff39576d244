"""Tickets: what a master has said of a roster, in a form that a master with the same secret knows again.

Owns what is signed, and what is believed of a peer that comes back from another master. The functions that need the
secret are handed in and have no effect: the core never sees it. Rules: docs/recovery.md, "Tickets".
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import msgpack, structs

from pccl.core.fields import Ticket
from pccl.core.messages.to_master import Resume
from pccl.core.messages.to_peer import Topology
from pccl.types import PeerId

BEYOND_MAX = 2**50
"""How far what a peer was told of may lie beyond what its ticket says: more numbers than a master gives in its life.
Without it one peer could use up the numbers that there are, and the next master could give none."""


class Keys(NamedTuple):
    """What a master's secret is for. Without one nothing is proved, and all is believed."""

    link: Callable[[int], bytes] = lambda number: b""
    """A fresh key for the link of this number; asked once for each."""
    sign: Callable[[bytes], bytes] = lambda statement: b""
    """16 bytes that only holders of the secret can find; the same from each of them."""
    clock_s: float = 0.0
    """What makes the time of day of `now`: masters that follow each other tell by it which ticket is the latest."""


NO_KEYS = Keys()


class Tickets:
    """Issued with each epoch, and looked at when a peer comes back."""

    def __init__(self, keys: Keys) -> None:
        self._sign = keys.sign
        self._clock_s = keys.clock_s
        self._latest = 0
        """When the latest was issued that is known here."""
        self.on = bool(keys.sign(b""))

    def issue(self, run: str, group: int, topology: Topology, last: tuple[int, int], now: float) -> Topology:
        """The same with its ticket, for all members of a group. `last`: the latest number, and the latest link."""
        if not self.on:
            return topology
        facts = (*last, self.follow(0, now), self._sign_all(topology.ring))
        seal = self._sign_all(run, group, topology.epoch, topology.global_size, *facts)
        return structs.replace(topology, ticket=Ticket(*facts, seal))

    def of_state(self, *facts: object) -> bytes:
        """For a group that is in step: run, group, attempt, revision, layout and content."""
        return self._sign_all("state", *facts) if self.on else b""

    def date(self, resume: Resume) -> int:
        """When the ticket of a report was issued; 0 for all if there are none. What this says is believed only of a
        report without an objection."""
        return resume.ticket.issued_at if self.on and resume.ticket is not None else 0

    def follow(self, issued_at: int, now: float) -> int:
        """When a ticket is issued that follows one of then: later, whatever the clock says."""
        self._latest = max(self._latest, issued_at + 1, int((self._clock_s + now) * 1000))
        return self._latest

    def objection(self, resume: Resume) -> str:
        """Why what a peer reports of its run is not believed; empty if it is, as far as its ring, which follows, fits
        its ticket."""
        ticket = resume.ticket
        if not self.on:
            return ""
        if ticket is None:
            return "it brings no ticket of a master"
        run, agreed = (resume.run, resume.me.group), resume.sync.agreed
        facts = resume.epoch, resume.global_size, ticket.number, ticket.link, ticket.issued_at, ticket.ring
        if not self._same(self._sign_all(*run, *facts), ticket.seal):
            return "no master with this secret has signed what it reports"
        if agreed is not None and not self._same(self.of_state(*run, *structs.astuple(agreed)[:-1]), agreed.ticket):
            return "no master with this secret has signed the state that it reports"
        beyond = max(resume.answered.last_number - ticket.number, resume.last_link - ticket.link)
        return "it reports numbers far beyond those of its ticket" if beyond > BEYOND_MAX else ""

    def names(self, ticket: Ticket | None, ring: tuple[PeerId, ...]) -> bool:
        """This is the ring of the ticket."""
        return not self.on or (ticket is not None and self._same(self._sign_all(ring), ticket.ring))

    def _sign_all(self, *facts: object) -> bytes:
        return self._sign(msgpack.encode(facts))

    def _same(self, one: bytes, other: bytes) -> bool:
        """Compared by what they become when they are signed: how long that takes says nothing of them."""
        return self._sign(one) == self._sign(other)
