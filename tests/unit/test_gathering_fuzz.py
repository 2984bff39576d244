"""Whatever peers tell a master that knows nothing, it goes on: reports that contradict each other and themselves."""

import random
from collections.abc import Iterator

import pytest
from msgspec import structs

from pccl.core.effects.master import Closed
from pccl.core.fields import Identity
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.report import Agreed, AttemptReport, Correction, LinkReport, ReportPart, TransferReport
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
    SyncEnded,
    SyncState,
    ToMaster,
    VoteTopology,
    Withdraw,
)
from pccl.types import SharedStateSyncStrategy
from tests.unit.scripted_master import RUN, SPEC, Stage, resume

PEERS = ("anna", "bert", "carl", "dora", "emil")
"""Few names and small numbers, so that what is told of them often concerns the same thing."""
HIGHEST = 9
REPORTS = 400


class Liar:
    """Draws what a peer may say."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def likely(self, probability: float) -> bool:
        return self.random.random() < probability

    def number(self) -> int:
        return self.random.randrange(HIGHEST)

    def digest(self) -> bytes:
        return bytes([self.random.randrange(2)]) * 16

    def claim(self) -> SyncState:
        strategy = self.random.choice(list(SharedStateSyncStrategy))
        return SyncState(self.random.randrange(3), strategy, self.digest(), self.digest())

    def report(self) -> Iterator[ToMaster]:
        draw = self.random
        peer = draw.choice(PEERS)
        yield self.resume(peer)
        yield ReportPart(ring=tuple(dict.fromkeys([peer, *draw.sample(PEERS, draw.randrange(4))])))
        links = [LinkReport(self.number(), draw.choice(PEERS), self.likely(0.5), 1) for _ in range(draw.randrange(5))]
        yield ReportPart(links=tuple(links), attempts=tuple(self.attempt() for _ in range(draw.randrange(4))))
        known = [tuple(self.number() for _ in range(draw.randrange(3))) for _ in range(2)]
        yield ReportPart(committed=known[0], aborted=known[1], last=self.likely(0.95))

    def resume(self, peer: str) -> Resume:
        draw = self.random
        return resume(
            peer,
            group=draw.choice((0, 0, 1)),
            run=draw.choice((RUN, RUN, "another")),
            epoch=self.number(),
            global_size=draw.randrange(1, 6),
            last_number=draw.choice((HIGHEST, HIGHEST, 5)),
            **{name: self.number() for name in ("accepted_at", "topology", "updated", "asked")},
            **{name: self.likely(0.3) for name in ("pending", "updating", "asking")},
            agreed=draw.choice((None, Agreed(self.number(), draw.randrange(3), self.digest(), self.digest()))),
            claim=draw.choice((None, self.claim())),
            transfer=draw.choice(list(TransferReport)),
            secret=draw.choice(("", f"of {peer}")),
            dial=draw.randrange(4),
            master=draw.choice(("", "one")),
            received=draw.randrange(2),
            sent=self.number(),
        )

    def attempt(self) -> AttemptReport:
        draw = self.random
        spec = structs.replace(SPEC, count=draw.choice((8, 8, 9)))
        lanes, cause, lost = draw.choice(((), (0,), (0, 1))), draw.choice(("", "", "x")), draw.sample(PEERS, 1)
        return AttemptReport(draw.randrange(3), spec, self.number(), lanes, self.likely(0.6), cause, tuple(lost))

    def word(self) -> ToMaster:
        tag, number = self.random.randrange(3), self.number()
        words = [VoteTopology(), AskPending(), Leave(), Ping(), Pong(), ReportPart(), self.claim(), Initiate(tag, SPEC)]
        words += [
            Correction(number),
            Done(tag, number),
            Failed(tag, number, "x"),
            SyncEnded(number, ""),
            LinkUp(number),
        ]
        words += [Withdraw(tuple(self.random.randrange(3) for _ in range(self.random.choice((1, 1, 2, 3)))))]
        return self.random.choice([*words, LinkDown(number, "x")])


@pytest.mark.parametrize("first", [0, 1])
def test_no_report_ends_the_master(first: int) -> None:
    for seed in range(first, REPORTS, 2):
        liar = Liar(seed)
        stage = Stage(follows=liar.likely(0.5))
        connections = 1
        for _ in range(liar.random.randrange(1, 14)):
            somebody = liar.random.randrange(1, connections + 1)
            match liar.random.choices(("report", "join", "end", "word", "wait"), (55, 10, 7, 13, 15))[0]:
                case "report":
                    stage.send(connections, *liar.report())
                    connections += 1
                case "join":
                    stage.send(connections, Join(Identity(liar.random.choice(PEERS), 0, "", 1, 0)))
                    connections += 1
                case "end":
                    stage.master.handle(Closed(somebody, "it died"), stage.now)
                case "word":
                    stage.send(somebody, liar.word())
                case "wait":
                    stage.wait(liar.random.choice((1.0, 3.0, 6.0, 61.0)))
            stage.master.explain()
        stage.wait(200.0)
