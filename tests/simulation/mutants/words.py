"""Rules of what observers and readers get, broken."""

from typing import Any

from pccl.core.master.master import Master
from pccl.core.master.observers import Observers
from pccl.core.names import Names
from tests.simulation.mutants.mutant import Mutant


def _count_observers(self: Any, event: Any, now: float) -> Any:
    self._roster.epoch += 1
    return _answer(self, event, now)


_answer = Observers.answer


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "count observers": (Mutant("an observer changes nothing", Observers, "answer", _count_observers),),
    "call nobody by its name": (Mutant("sentences have names", Names, "spell", lambda self, sentence: sentence),),
    "say nothing": (Mutant("every wait has words", Master, "explain", lambda self: ()),),
}
