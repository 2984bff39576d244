"""Onlookers, one for each rule that must hold whatever happens. They see messages and effects, never a core's state."""

from tests.simulation.checkers.ballots import AllVotes, AwaitedPeersKnow, NoSilentWait
from tests.simulation.checkers.base import Audience, Checker
from tests.simulation.checkers.calls import AnsweredOnce, BoundedWaits, NoFalseBlame, Withdrawals
from tests.simulation.checkers.lanes import HonestLinks, LinksComeAbout, OneOwner
from tests.simulation.checkers.membership import NobodyWaitsForTheDead, NoInnocentLost, RingsStand, VisitorsStayOutside
from tests.simulation.checkers.names import SentencesHaveNames
from tests.simulation.checkers.observers import ObserversStayOutside
from tests.simulation.checkers.outcomes import OneOutcome, RightSum
from tests.simulation.checkers.parties import NobodyWaitsForHalves, WholeParties
from tests.simulation.checkers.recovery import KicksAreJust, NoGaps, NothingInvented, OneLog
from tests.simulation.checkers.rights import OnlyOperatorsKick, VotesAreLimited
from tests.simulation.checkers.rings import FreshSizes, OneRing
from tests.simulation.checkers.states import HighestWins, NobodyUsurps, OneState, OneStrategy, SourcesHold
from tests.simulation.checkers.strands import Strands
from tests.simulation.checkers.widths import Widths

ALL: tuple[type[Checker], ...] = (
    OneOutcome,
    RightSum,
    OneState,
    HighestWins,
    SourcesHold,
    OneStrategy,
    NobodyUsurps,
    OneRing,
    FreshSizes,
    OneOwner,
    HonestLinks,
    LinksComeAbout,
    AnsweredOnce,
    Withdrawals,
    NoFalseBlame,
    BoundedWaits,
    NoInnocentLost,
    KicksAreJust,
    OneLog,
    NoGaps,
    NothingInvented,
    NobodyWaitsForTheDead,
    RingsStand,
    VisitorsStayOutside,
    WholeParties,
    NobodyWaitsForHalves,
    AllVotes,
    NoSilentWait,
    AwaitedPeersKnow,
    SentencesHaveNames,
    ObserversStayOutside,
    OnlyOperatorsKick,
    VotesAreLimited,
    Widths,
    Strands,
)

NAMES = (
    *(checker.name for checker in ALL),
    "progress",
    "farewell",
    "deadlines",
    "nothing is lost",
    "lanes are alike",
    "parcels come",
    "served state",
)
"""Of all rules: of those above, and of those that the theatre and its hosts look after themselves."""

__all__ = ["ALL", "NAMES", "Audience", "Checker"]
