"""Rules of how many lanes links have, broken."""

from typing import Any

from pccl.core.master.lanes import Lanes
from pccl.core.master.widths import Widths
from pccl.core.rules.lanes import Tuner
from tests.simulation.mutants.mutant import Mutant


def _without_bound(self: Any, link: Any, needed: bool) -> int:
    least: int = self._roster.lanes[link.group]
    return max(least, self.wide.get(link.group, least))


def _judge_without_bound(self: Any, seen: Any, most: int, now: float) -> str:
    return _JUDGE(self, seen, 64, now)


def _keep(self: Any, change: Any, seen: Any, now: float) -> str:
    self._change = None
    return ""


def _go_back_and_try_again(self: Any, lanes: int, now: float, rates: Any) -> None:
    self._restore(lanes, rates)


def _until_one_is_done(self: Any, group: int) -> bool:
    burst = self._bursts.get(group)
    return burst is not None and not burst.flows


_JUDGE = Tuner.judge

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "more lanes than descriptors": (
        Mutant("both ends can open them", Widths, "wanted", _without_bound),
        Mutant("and the number is bounded", Tuner, "judge", _judge_without_bound),
    ),
    "change lanes under a collective": (
        Mutant("nothing runs over a link that is made again", Lanes, "_runs", _until_one_is_done),
    ),
    "ignore the number of the user": (Mutant("it is obeyed", Lanes, "_asked", lambda self, group: False),),
    "keep lanes that bring nothing": (Mutant("the rate decides", Tuner, "_verify", _keep),),
    "try the same number again at once": (
        Mutant("a change that brought nothing is held for a while", Tuner, "_go_back", _go_back_and_try_again),
    ),
}
