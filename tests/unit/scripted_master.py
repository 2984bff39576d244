"""A master that does what it decides, and peers that come back to it with the reports that a test gives them."""

from msgspec import structs

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Close, Closed, MasterEffect, Received, Send
from pccl.core.fields import CollectiveSpec, Identity
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.messages.report import Answered, AttemptReport, ReportPart
from pccl.core.messages.to_master import Resume
from pccl.core.messages.to_peer import Resumed, ToPeer
from pccl.types import DataType, ReduceOp

RUN = "therun"
RING = ("anna", "bert", "carl", "dora")
SPEC = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM)
LIMITS = MasterLimits(reunion_s=5.0, silence_s=60.0)


def resume(peer: str, **facts: object) -> Resume:
    """What a peer of the run reports but for these facts, which may be fields of the structs in it as well."""
    report = Resume(
        me=Identity(peer, group=0, host="10.0.0.1", port=1, lanes=1),
        run=RUN,
        epoch=7,
        global_size=len(RING),
        last_link=9,
        answered=Answered(last_number=90, accepted_at=1, topology=50, updated=50),
    )
    for name in ("me", "answered", "sync"):
        inner = getattr(report, name)
        own = {fact: facts.pop(fact) for fact in inner.__struct_fields__ if fact in facts}
        facts[name] = structs.replace(inner, **own)
    return structs.replace(report, **facts)


class Stage:
    """A master, and what it told each connection."""

    def __init__(self, limits: MasterLimits = LIMITS, **arguments: object) -> None:
        self.master = Master("another", limits, **arguments)  # type: ignore[arg-type]
        self.told: dict[int, list[ToPeer]] = {}
        self.closed: list[int] = []
        self.now = 0.0
        self._note(self.master.handle(Tick(), 0.0))

    def _note(self, effects: list[MasterEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for connection in effect.connections:
                    self.told.setdefault(connection, []).append(effect.message)
            elif isinstance(effect, Close):
                self.closed.append(effect.connection)

    def send(self, connection: int, *messages: object) -> None:
        for message in messages:
            self._note(self.master.handle(Received(connection, message, "10.0.0.9"), self.now))  # type: ignore[arg-type]

    def tick(self) -> None:
        self._note(self.master.handle(Tick(), self.now))

    def close(self, connection: int) -> None:
        self._note(self.master.handle(Closed(connection, "reset"), self.now))

    def come_back(self, connection: int, peer: str, *runs: AttemptReport, **facts: object) -> None:
        ring = facts.pop("ring", RING)
        outcomes = ReportPart(committed=facts.pop("committed", ()), aborted=facts.pop("aborted", ()))  # type: ignore[arg-type]
        recalls = (ReportPart(ring=ring), ReportPart(attempts=runs), outcomes, ReportPart(last=True))  # type: ignore[arg-type]
        self.send(connection, resume(peer, **facts), *recalls)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.master.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self._note(self.master.handle(Tick(), self.now))
        self.now = end

    def last(self, connection: int, kind: type) -> ToPeer | None:
        return next((each for each in reversed(self.told.get(connection, [])) if isinstance(each, kind)), None)


def taken_back(stage: Stage) -> list[int]:
    return [connection for connection in sorted(stage.told) if stage.last(connection, Resumed)]
