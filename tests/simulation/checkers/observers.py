"""Observers are told the truth, and no decision follows from what they ask."""

from pccl.core.effects.master import Close, Closed, DialBack, DialledBack, MasterEffect, MasterEvent, Received, Send
from pccl.core.messages.observers import AskProbe, AskStatus
from pccl.core.status import Status
from tests.simulation.checkers.base import Checker
from tests.simulation.violation import Violation


class ObserversStayOutside(Checker):
    """What the master does about an observer concerns that observer alone: no epoch, ballot or roster changes. And the
    status is that of the roster as the peers were told it."""

    name = "observers stay outside"

    def master_decides(self, event: MasterEvent, effects: list[MasterEffect]) -> None:
        if isinstance(event, Closed) and event.connection in self.theatre.observers and effects:
            raise self.fail(f"an observer goes, and the master does {effects}")
        asks = isinstance(event, Received) and isinstance(event.message, AskStatus | AskProbe)
        if not isinstance(event, DialledBack) and not (asks and event.connection in self.theatre.observers):
            return
        for effect in effects:
            match effect:
                case Send((connection,), message) if connection == event.connection:
                    if isinstance(message, Status):
                        self._compare(message)
                case Close(connection) | DialBack(connection) if connection == event.connection:
                    pass
                case _:
                    raise self._outside(effect)

    def _outside(self, effect: MasterEffect) -> Violation:
        return self.fail(f"an observer asks, and the master does {effect}")

    def _compare(self, status: Status) -> None:
        told = {known.peer: known.topology for known in self.ledger.known.values() if known.topology is not None}
        listed = {each.peer for each in status.peers if each.stage in ("accepted", "away")}
        if listed != set(told):
            raise self.fail(f"the status has {sorted(listed)} on the roster, the peers were told {sorted(told)}")
        epochs = {topology.epoch for topology in told.values()}
        if told and epochs != {status.epoch}:
            raise self.fail(f"the status has epoch {status.epoch}, the peers were told {sorted(epochs)}")
        if any(not text.isprintable() for each in status.peers for text in (each.name, each.machine)):
            raise self.fail("a name in the status is not printable")
