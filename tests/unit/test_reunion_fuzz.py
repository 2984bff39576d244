"""Whatever peers tell a master that knows nothing, it goes on: stories that contradict each other and themselves."""

import random
from collections.abc import Iterator

import pytest
from msgspec import structs

from pccl.core.effects import Closed
from pccl.core.messages import (
    Agreed,
    AskPending,
    Done,
    Failed,
    Initiate,
    Join,
    Leave,
    LinkDown,
    LinkReport,
    LinkUp,
    Ping,
    Pong,
    Recall,
    Resume,
    RunReport,
    SyncEnded,
    SyncState,
    ToMaster,
    TransferReport,
    VoteTopology,
)
from pccl.types import SharedStateSyncStrategy
from tests.unit.test_reunion import RUN, SPEC, Stage, resume

PEERS = ("anna", "bert", "carl", "dora", "emil")
"""Few names and small numbers, so that what is told of them often concerns the same thing."""
HIGHEST = 9
STORIES = 400


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

    def story(self) -> Iterator[ToMaster]:
        draw = self.random
        peer = draw.choice(PEERS)
        yield self.resume(peer)
        yield Recall(ring=tuple(dict.fromkeys([peer, *draw.sample(PEERS, draw.randrange(4))])))
        links = [LinkReport(self.number(), draw.choice(PEERS), self.likely(0.5), 1) for _ in range(draw.randrange(5))]
        yield Recall(links=tuple(links), runs=tuple(self.run() for _ in range(draw.randrange(4))))
        known = [tuple(self.number() for _ in range(draw.randrange(3))) for _ in range(2)]
        yield Recall(committed=known[0], aborted=known[1], last=self.likely(0.95))

    def resume(self, peer: str) -> Resume:
        draw = self.random
        return resume(
            peer,
            group=draw.choice((0, 0, 1)),
            run=draw.choice((RUN, RUN, "another")),
            masters=draw.choice((1, 1, 2)),
            epoch=self.number(),
            global_size=draw.randrange(1, 6),
            groups=draw.choice((1, 2)),
            last_number=draw.choice((HIGHEST, HIGHEST, 5)),
            **{name: self.number() for name in ("accepted_at", "topology", "updated", "asked")},
            **{name: self.likely(0.3) for name in ("pending", "updating", "asking")},
            agreed=draw.choice((None, Agreed(self.number(), draw.randrange(3), self.digest(), self.digest()))),
            claim=draw.choice((None, self.claim())),
            transfer=draw.choice(list(TransferReport)),
        )

    def run(self) -> RunReport:
        draw = self.random
        spec = structs.replace(SPEC, count=draw.choice((8, 8, 9)))
        lanes, cause, lost = draw.choice(((), (0,), (0, 1))), draw.choice(("", "", "x")), draw.sample(PEERS, 1)
        return RunReport(draw.randrange(3), spec, self.number(), lanes, self.likely(0.6), cause, tuple(lost))

    def word(self) -> ToMaster:
        tag, number = self.random.randrange(3), self.number()
        words = [VoteTopology(), AskPending(), Leave(), Ping(), Pong(), Recall(), self.claim(), Initiate(tag, SPEC)]
        words += [Done(tag, number), Failed(tag, number, "x"), SyncEnded(number, ""), LinkUp(number)]
        return self.random.choice([*words, LinkDown(number, "x")])


@pytest.mark.parametrize("first", [0, 1])
def test_no_story_ends_the_master(first: int) -> None:
    for seed in range(first, STORIES, 2):
        liar = Liar(seed)
        stage = Stage(follows=liar.likely(0.5))
        connections = 1
        for _ in range(liar.random.randrange(1, 14)):
            somebody = liar.random.randrange(1, connections + 1)
            match liar.random.choices(("story", "join", "end", "word", "wait"), (55, 10, 7, 13, 15))[0]:
                case "story":
                    stage.say(connections, *liar.story())
                    connections += 1
                case "join":
                    stage.say(connections, Join(liar.random.choice(PEERS), 0, "", 1, 0, begin=liar.likely(0.8)))
                    connections += 1
                case "end":
                    stage.master.handle(Closed(somebody, "it died"), stage.now)
                case "word":
                    stage.say(somebody, liar.word())
                case "wait":
                    stage.wait(liar.random.choice((1.0, 3.0, 6.0, 61.0)))
            stage.master.explain()
        stage.wait(200.0)
