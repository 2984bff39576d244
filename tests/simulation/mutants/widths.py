"""Rules of how many lanes links have, broken."""

from typing import Any

from pccl.core.master.lanes import Lanes
from pccl.core.master.widths import Widths
from pccl.core.rules import lanes as rules
from pccl.core.rules.lanes import Tuner
from tests.simulation.mutants.mutant import Mutant


def _without_bound(self: Any, link: Any, needed: bool) -> int:
    least: int = self._roster.lanes[link.group]
    return max(least, self.wide.get(link.group, least))


def _judge_without_bound(self: Any, seen: Any, most: int, now: float) -> str:
    return _JUDGE(self, seen, 64, now)


def _keep(self: Any, looks: Any, now: float) -> str:
    self.before = 0
    return ""


def _go_back_and_try_again(self: Any, now: float, rest_s: float) -> None:
    _GO_BACK(self, now, 0.0)


def _until_one_is_done(self: Any, group: int) -> bool:
    burst = self._bursts.get(group)
    return burst is not None and not burst.flows


def _after_one_look(looks: Any) -> float:
    return max((each.rate for each in looks), default=0.0)


_JUDGE, _GO_BACK, _NEVER = Tuner.judge, Tuner._go_back, 1 << 60

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "more lanes than descriptors": (
        Mutant("both ends can open them", Widths, "wanted", _without_bound),
        Mutant("and the number is bounded", Tuner, "judge", _judge_without_bound),
    ),
    "change lanes under a collective": (
        Mutant("nothing runs over a link that is made again", Lanes, "_runs", _until_one_is_done),
    ),
    "ignore the number of the user": (Mutant("it is obeyed", Lanes, "_asked", lambda self, group: False),),
    "keep lanes that bring nothing": (Mutant("the rate decides", Tuner, "_verify", _keep, first=370),),
    "try the same number again at once": (
        Mutant(
            "a change that brought nothing is held for a while", Tuner, "_go_back", _go_back_and_try_again, first=285
        ),
    ),
    "grow though a queue stands": (
        Mutant("no queue stands where more lanes are tried", rules, "QUEUE_SHARE", float(_NEVER), first=240),
    ),
    "take every loss for what limits": (
        Mutant("lanes are as slow as losses make them", rules, "FAR", _NEVER, first=110),
    ),
    "never shrink": (Mutant("where nothing is lost for long fewer are tried", rules, "QUIET", _NEVER, first=140),),
    "judge after one look": (Mutant("what is compared is as warm", rules, "to_beat", _after_one_look, first=380),),
    "no UNLIKE limit": (Mutant("a change that cannot be judged is taken back", rules, "UNLIKE", _NEVER, first=370),),
}
