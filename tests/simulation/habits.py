"""What hostile peers do: their characters, and the messages that they make up."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from pccl.core.messages import (
    AskPending,
    CollectiveSpec,
    Done,
    Failed,
    Initiate,
    Join,
    Leave,
    LinkDown,
    LinkUp,
    Ping,
    Pong,
    Recall,
    Resume,
    ToMaster,
    VoteTopology,
)
from pccl.types import DataType, ReduceOp
from tests.simulation.people import spec_of

if TYPE_CHECKING:
    from tests.simulation.hostile import HostileHost


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


def draw_seesaw(random: Random) -> Habits:
    """The character of one that does nothing but make its links in turn."""
    return structs.replace(draw_habits(random), obeys=True, answers=1.0, flaps=0.0, alternates=True, kinds=())


def _join(host: "HostileHost") -> ToMaster:
    peer = host.random.choice([host.identity.peer, *host.theatre.peers])
    # A group of its own: in another one it could fix the number of lanes before the first honest peer comes.
    return Join(peer, host.random.choice((1_000, host.number() % 2**32)), "", host.random.randint(1, 65535), 3)


def _resume(host: "HostileHost") -> ToMaster:
    """It claims to be of a run that nobody knows."""
    me = host.identity
    return Resume(
        peer=me.peer,
        group=me.group,
        host="",
        port=me.port,
        lanes=0,
        serves=True,
        run="another",
        masters=1,
        epoch=host.number() % 2**62,
        global_size=host.number(),
        groups=1,
        last_link=0,
        last_number=0,
        accepted_at=0,
        topology=0,
        updated=0,
        asked=0,
        pending=False,
        agreed=None,
        updating=True,
        asking=True,
        claim=None,
    )


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
    Recall: lambda host: Recall(ring=(host.identity.peer,), last=host.likely(0.5)),
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
