"""An attacker with a token: admitted like others, it runs a core and keeps the form of every rule, and does harm within
its rights. Each insider has a few tricks.

What it can do to others is bounded by the core, not by what the messages may hold: see `hostile.py` for those who send
anything at all.
"""

from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pccl.core.effects.peer_effects import SendMaster
from pccl.core.effects.peer_events import FromMaster, PeerEvent
from pccl.core.fields import Flow, Identity
from pccl.core.messages.report import Agreed, Answered, ReportPart
from pccl.core.messages.to_master import (
    AskPending,
    Done,
    Initiate,
    Join,
    Leave,
    LinkDown,
    Resume,
    SyncReport,
    SyncState,
    ToMaster,
    VoteTopology,
)
from pccl.core.messages.to_peer import Topology, Wire
from pccl.core.rights import Rights
from pccl.types import SharedStateSyncStrategy
from tests.simulation.habits import draw_obedient
from tests.simulation.hostile import HostileHost

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre

ENTRANCES_MAX = 4
"""How often insiders enter a run: each is put out sooner or later, and its token may still be good."""

OFTEN = 0.3
"""How often a trick is played where it could be: an insider that did nothing else would be out too soon."""


class Trick(Enum):
    """What an insider does."""

    LIE = "it sends each neighbour something else, and reports any digest"
    ABSTAIN = "it answers pings and does not vote"
    DENY = "it says of each of its links that it is down"
    STALL = "as a candidate it sends nothing after its first message, and comes again when it was refused"
    USURP = "it brings a state of its own, to replace that of the others"
    CONTRADICT = "it calls collectives with parameters of its own"
    INVENT = "it reports a run, an epoch, a ring, a state or numbers that never were to the next master"
    REPLAY = "it reports what it was told long ago to the next master, with the ticket of then"


_DRAWN = [trick for trick in Trick if trick not in (Trick.INVENT, Trick.REPLAY)]
"""Most have one or two of these. The others come on top, by dice of their own, so that seeds stay the runs that they
were; and only where masters have a secret: without one they believe what they are told."""

_INVENTIONS = ("run", "epoch", "ring", "numbers", "links", "no ticket", "state")


class Insider(HostileHost):
    """One such process."""

    rights = Rights.JOIN | Rights.OBSERVE
    """Of a token that was made for it; the first one that is printed has more."""

    def __init__(self, theatre: "Theatre", identity: Identity, address: tuple[str, int], distance_s: float) -> None:
        super().__init__(theatre, identity, address, distance_s, draw_obedient(theatre.random))
        self._dice = Random(identity.peer)
        self.slowness_s = 0.0
        self.tricks = frozenset(self._dice.sample(_DRAWN, self._dice.choice((1, 1, 2))))
        if not theatre.plan.master_limits.undecided_s and self._dice.random() < 0.5:
            # All others can reach each other: whoever is put out for a link is put out by this one.
            self.tricks = frozenset((Trick.DENY,))
        self._fantasy = Random(f"{identity.peer} invents")
        self._invention = ""
        """Of its present report."""
        self._told: list[tuple[str, Topology]] = []
        """Of all epochs that it was in, with the names of their runs."""
        self._replayed: Topology | None = None
        """In its present report."""
        if theatre.plan.secured and self._fantasy.random() < 0.7:
            self.tricks |= {Trick.INVENT}
        if theatre.plan.secured and self._fantasy.random() < 0.5:
            self.tricks |= {Trick.REPLAY}

    def plays(self, trick: Trick) -> bool:
        """Whether it does this now."""
        return trick in self.tricks and self.theatre.acting and self._dice.random() < OFTEN

    def lies(self) -> bool:
        return self.plays(Trick.LIE)

    def handle(self, event: PeerEvent) -> None:
        super().handle(event)
        if isinstance(event, FromMaster) and isinstance(event.message, Topology):
            self._told.append((self.core.run, event.message))
        if isinstance(event, FromMaster) and isinstance(event.message, Wire) and Trick.DENY in self.tricks:
            for link in event.message.links if self.theatre.acting and self.core.accepted else ():
                self.say(LinkDown(link.number, "no"))

    def perform(self, effect: Any) -> None:
        if isinstance(effect, SendMaster) and not effect.again:
            changed = self._change(effect.message)
            if changed is None:
                return
            effect = SendMaster(changed)
        super().perform(effect)

    def _change(self, message: ToMaster) -> ToMaster | None:
        """What it sends instead; None for nothing."""
        if Trick.STALL in self.tricks and not self.core.accepted and not isinstance(message, Join | Leave):
            return None
        match message:
            case Resume() if Trick.REPLAY in self.tricks and self._told and self._fantasy.random() < 0.7:
                return self._replay(message)
            case ReportPart() if self._replayed is not None:
                return ReportPart(ring=self._replayed.ring if message.ring else (), last=message.last)
            case Resume() if Trick.INVENT in self.tricks:
                return self._invent(message)
            case ReportPart() if Trick.INVENT in self.tricks and self._invention == "ring" and message.ring:
                return structs.replace(message, ring=(self.identity.peer,))
            case VoteTopology() | AskPending() | Initiate() | SyncState() if Trick.ABSTAIN in self.tricks:
                return None if self.plays(Trick.ABSTAIN) else message
            case SyncState() if self.plays(Trick.USURP):
                revision = message.revision + self._dice.choice((0, 1, 1, 5))
                strategy = self._dice.choice((message.strategy, message.strategy, SharedStateSyncStrategy.SEND_ONLY))
                evil = self._dice.randbytes(16)
                if self._fantasy.random() < 0.5:  # All of them the same: they are one token, as often as it joined.
                    evil = Random(f"usurped {revision}").randbytes(16)
                return structs.replace(message, revision=revision, strategy=strategy, content=evil, torn=False)
            case Done() if self.plays(Trick.LIE):
                digest = self._dice.choice((b"", self._dice.randbytes(16)))
                return structs.replace(message, digest=digest, flow=self._fancy())
            case Initiate() if self.plays(Trick.CONTRADICT):
                return structs.replace(
                    message, spec=structs.replace(message.spec, count=message.spec.count + 1), parcel=0
                )
        return message

    def _fancy(self) -> Flow:
        """Figures that no kernel has counted."""
        return Flow(*(self._fantasy.choice((0, 1, 10**6, 2**32 - 1)) for _ in Flow.__struct_fields__))

    def _replay(self, resume: Resume) -> Resume:
        """As of the epoch that fewest others were in: best of all one in which it was alone."""
        run, told = min(self._told, key=lambda each: each[1].global_size)
        self._replayed, self._invention, ticket = told, "", told.ticket
        assert ticket is not None, "masters of a secured run sign all that they say of a roster"
        return structs.replace(
            resume,
            run=run,
            epoch=told.epoch,
            global_size=told.global_size,
            last_link=ticket.link,
            answered=Answered(last_number=max(ticket.number, told.number)),
            updating=False,
            asking=False,
            sync=SyncReport(),
            ticket=ticket,
        )

    def _invent(self, resume: Resume) -> Resume:
        """With the ticket that it has, as far as it fits."""
        self._invention, self._replayed = self._fantasy.choice(_INVENTIONS), None
        had = structs.replace(resume.answered, last_number=2**62)
        changes: dict[str, dict[str, Any]] = {
            "run": {"run": "another", "global_size": 1000},
            "epoch": {"epoch": resume.epoch + self._fantasy.choice((1, 1_000_000, 2**61))},
            "ring": {},
            "numbers": {"answered": had},
            "links": {"last_link": 2**62},
            "no ticket": {"ticket": None, "epoch": resume.epoch + 1},
            "state": {"sync": structs.replace(resume.sync, agreed=self._better_state(resume))},
        }
        return structs.replace(resume, **changes[self._invention])

    def _better_state(self, resume: Resume) -> Agreed:
        """One of its own, with the ticket of the one that was agreed on, if there was one."""
        had = resume.sync.agreed or Agreed(0, 0, bytes(16), bytes(16))
        return structs.replace(had, attempt=resume.answered.last_number, revision=had.revision + 1)
