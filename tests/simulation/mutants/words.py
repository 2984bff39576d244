"""Rules of what observers and readers get, broken."""

from typing import Any

from pccl.core.master.master import Master
from pccl.core.master.observers import Observers
from pccl.core.master.waits import Waits
from pccl.core.messages.to_peer import Awaited
from pccl.core.names import Names
from pccl.core.text import clip
from tests.simulation.mutants.mutant import Mutant


def _count_observers(self: Any, event: Any, now: float) -> Any:
    self._roster.epoch += 1
    return _answer(self, event, now)


_answer = Observers.answer


def _tell_those_that_wait(self: Any, now: float) -> None:
    for wait in self.all():
        if wait.call and wait.waiting:
            self.outbox.send(wait.waiting[:1], Awaited(clip(wait.call), int(1000 * (now - wait.since))))


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "count observers": (Mutant("an observer changes nothing", Observers, "answer", _count_observers),),
    "call nobody by its name": (Mutant("sentences have names", Names, "spell", lambda self, sentence: sentence),),
    "tell no peer that others wait for it": (
        Mutant("awaited peers know", Waits, "_send_awaited", lambda self, now: None),
    ),
    "tell peers that wait that others do": (
        Mutant("no other peer is told", Waits, "_send_awaited", _tell_those_that_wait),
    ),
    "say nothing": (Mutant("every wait has words", Master, "explain", lambda self: ()),),
}
