"""Onlookers, one for each rule that must hold whatever happens. They see messages and effects, never a core's state."""

from tests.simulation.checkers.ballots import AllVotes, NoSilentWait
from tests.simulation.checkers.base import Audience, Checker
from tests.simulation.checkers.calls import AnsweredOnce, BoundedWaits, NoFalseBlame
from tests.simulation.checkers.lanes import HonestLinks, LinksComeAbout, OneOwner
from tests.simulation.checkers.membership import NobodyWaitsForTheDead, NoInnocentLost, RingsStand, VisitorsStayOutside
from tests.simulation.checkers.outcomes import OneOutcome, RightSum
from tests.simulation.checkers.rings import FreshSizes, OneRing
from tests.simulation.checkers.states import HighestWins, OneState, SourcesHold

ALL: tuple[type[Checker], ...] = (
    OneOutcome,
    RightSum,
    OneState,
    HighestWins,
    SourcesHold,
    OneRing,
    FreshSizes,
    OneOwner,
    HonestLinks,
    LinksComeAbout,
    AnsweredOnce,
    NoFalseBlame,
    BoundedWaits,
    NoInnocentLost,
    NobodyWaitsForTheDead,
    RingsStand,
    VisitorsStayOutside,
    AllVotes,
    NoSilentWait,
)

__all__ = ["ALL", "Audience", "Checker"]
