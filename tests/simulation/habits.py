"""What hostile peers do: their characters, and the messages that they make up."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from pccl.core.fields import CollectiveSpec, Identity
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.report import REPORT_LINKS, LinkReport, ReportPart
from pccl.core.messages.to_master import (
    AskPending,
    Done,
    Failed,
    Initiate,
    Join,
    Leave,
    LinkDown,
    LinkUp,
    Resume,
    ToMaster,
    VoteTopology,
    Withdraw,
)
from pccl.types import DataType, PeerId, ReduceOp
from tests.simulation.people import spec_of

if TYPE_CHECKING:
    from tests.simulation.hostile import HostileHost


LINKS_MADE_UP = 3
"""Numbers under which hostile peers claim to have a link with each other."""


class Habits(Struct, frozen=True):
    """What one hostile peer does, and how often."""

    obeys: bool
    """It runs a core, and interferes with what that wants."""
    joins: bool
    trains: bool
    stays: bool
    """It does not go when its core gives up."""
    answers: float
    """Probability that it answers a ping, or sends anything else that its core wants."""
    flaps: float
    """Probability that a lane is closed again after it stands."""
    flaps_after_s: float
    alternates: bool
    """It never has two links at once: it breaks those that stand before it makes another."""
    kinds: tuple[type[ToMaster], ...]
    """Messages that it makes up."""
    every_s: float


def draw_habits(random: Random) -> Habits:
    """A character. Most messages get an accepted peer kicked at once, so each makes up a few kinds only."""
    kinds = random.sample(list(MESSAGES), random.choice((0, 1, 2, 3)))
    alternates = random.random() < 0.4
    return Habits(
        obeys=random.random() < 0.6,
        joins=random.random() < 0.9,
        trains=random.random() < 0.7,
        stays=random.random() < 0.5,
        answers=random.choice((1.0, 1.0, 0.9, 0.0)),
        flaps=random.choice((0.0, 0.2, 1.0)),
        flaps_after_s=random.choice((0.0, 0.5, 5.0)),
        alternates=alternates,
        kinds=() if alternates else (LinkDown, *kinds) if random.random() < 0.4 else tuple(kinds),
        every_s=random.choice((0.3, 1.0, 5.0)),
    )


_NAMES = (
    "",
    "\x1b[2J\x1b[31mred",
    "two\nlines",
    "<script>alert(1)</script>",
    "x" * 64,
    '" is gone: it said goodbye; "',
    "\u202egnorw",
    "😀" * 16,
)
"""What a hostile peer calls itself: text that a terminal, a page or a reader would take for something else."""


def draw_name(kind: str, number: int) -> str:
    """A name; hostile peers have hostile ones. By number, so that no other draw of a seed changes."""
    return _NAMES[number % len(_NAMES)] if kind == "h" else f"{kind}-{number}"


def draw_seesaw(random: Random) -> Habits:
    """The character of one that does nothing but make its links in turn."""
    return structs.replace(draw_habits(random), obeys=True, answers=1.0, flaps=0.0, alternates=True, kinds=())


def draw_obedient(random: Random) -> Habits:
    """The character of one that obeys its core in all things."""
    quiet = {"stays": False, "answers": 1.0, "flaps": 0.0, "alternates": False, "kinds": ()}
    return structs.replace(draw_habits(random), obeys=True, joins=True, trains=True, every_s=1000.0, **quiet)


def _join(host: "HostileHost") -> ToMaster:
    peer = host.random.choice([host.identity.peer, *host.theatre.peers])
    # A group of its own: in another one it could fix the number of lanes before the first honest peer comes.
    group = host.random.choice((1_000, host.number() % 2**32))
    return Join(Identity(peer, group, "", host.random.randint(1, 65535), 3))


def _resume(host: "HostileHost") -> Resume:
    """It claims to be of a run that nobody knows."""
    me = host.identity
    return Resume(
        me=Identity(me.peer, me.group, "", me.port, lanes=0),
        run="another",
        epoch=host.number() % 2**62,
        global_size=host.number(),
        last_link=LINKS_MADE_UP,
        updating=True,
        asking=True,
    )


def story(host: "HostileHost") -> list[ToMaster]:
    """A run of hostile peers that never was: they agree with each other, and on links that cannot be. In a group of
    its own, for the same reason."""
    accomplices = [PeerId(peer) for peer, other in host.theatre.peers.items() if other.hostile]
    me = host.identity.peer
    links = [
        LinkReport(number, other, dial=me < other, lanes=host.theatre.plan.master_limits.default_lanes)
        for number in range(1, LINKS_MADE_UP + 1)
        for other in accomplices
        if other != me
    ]
    made_up = _resume(host)
    identity = structs.replace(made_up.me, group=1_000)
    resume = structs.replace(made_up, me=identity, epoch=1, global_size=len(accomplices), updating=False)
    return [resume, ReportPart(ring=tuple(sorted(accomplices)), links=tuple(links[:REPORT_LINKS]), last=True)]


def _initiate(host: "HostileHost") -> ToMaster:
    tag = host.random.randrange(host.theatre.plan.tags + 1) if host.likely(0.8) else host.number()
    spec = (
        spec_of(tag, host.theatre.plan)
        if host.likely(0.5)
        else CollectiveSpec(host.number(), DataType.INT8, ReduceOp.MIN, "other")
    )
    return Initiate(tag, spec)


MESSAGES: dict[type[ToMaster], Callable[["HostileHost"], ToMaster]] = {
    Join: _join,
    Resume: _resume,
    ReportPart: lambda host: ReportPart(ring=(host.identity.peer,), last=host.likely(0.5)),
    VoteTopology: lambda host: VoteTopology(),
    AskPending: lambda host: AskPending(),
    Initiate: _initiate,
    Done: lambda host: Done(host.number(), host.number()),
    Failed: lambda host: Failed(host.number(), host.number(), "no"),
    LinkUp: lambda host: LinkUp(host.number()),
    LinkDown: lambda host: LinkDown(host.number(), "no"),
    Leave: lambda host: Leave(),
    Ping: lambda host: Ping(),
    Pong: lambda host: Pong(),
}

MESSAGES_OF_CONSPIRATORS: dict[type[ToMaster], Callable[["HostileHost"], ToMaster]] = {
    Withdraw: lambda host: Withdraw(tuple(host.number() % 4 for _ in range(host.random.choice((1, 1, 2))))),
}
"""Not among those that the others choose from, so that seeds stay the runs that they were."""
