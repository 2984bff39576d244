"""Which nodes count in a round, played: groups commit one after the other in any order, nodes die in between, several
fragments are under way, nodes join. All that are left add up the same deltas, and none of them waits for ever.

What the ranks do is the real thing; master, ring and the exchanges inside a node are played by one thread, which acts
when all ranks wait, and then does one thing by lot.
"""

import random
import threading
from types import SimpleNamespace

import pytest
import torch

from pccl import ErrorFeedback, ReduceInfo, TooFewPeers
from pccl.training.equals import packed
from pccl.training.fsdp.group import NodeGroup
from pccl.training.group import ROLL_CALL
from pccl.training.rows import Row
from tests.patience import HANG_S

FRAGMENTS, ROUNDS = 2, 3

DEADLY = 0.1
"""How many deeds are followed by a death: there are about forty in a round."""


class Dead(BaseException):
    """The rank was killed where it waited."""


class Counted(ErrorFeedback):
    """Which results of a fragment count: all that were committed, but for those that were taken back."""

    def __init__(self):
        super().__init__("int8")
        self.counted = [0] * FRAGMENTS

    def take_back(self, tag):
        self.counted[tag] -= 1


class Rank:
    """One rank of a node, in a thread of its own."""

    def __init__(self, play, node, place):
        self._play, self.node, self.place, self.at = play, node, place, "here"
        self.found, self.feedback = {}, Counted()
        number, size = node.number, play.groups
        exchange = SimpleNamespace(
            number=number, place=place, size=size, copies=1, party=f"node-{number}", join_parts=lambda values: None
        )
        exchange.own_part, exchange.exchange = (lambda values: values), self._exchange
        self.group = NodeGroup("127.0.0.1:1", self.feedback, exchange)
        self.group._communicator = self
        self.peer_id = self.group._me = f"{number}.{place}"

    def run(self):
        try:
            while (round := self.wait("admit", None)) < ROUNDS:
                self.train(round)
        except Dead:
            self.at = "dead"
        except BaseException as error:
            self.at = f"failed: {error!r}"
        else:
            self.at = "done"
        self._play.wake.set()

    def train(self, round):
        row = self.group.together(Row(steps=1, round=round))
        peers = self.group.roll_call(row.pack(packed({})), 1).table.rows
        deltas = [torch.tensor([self.delta(round, fragment, self.node.number)]) for fragment in range(FRAGMENTS)]
        flights = [self.group.launch(number, each, row.pack(torch.zeros(0))) for number, each in enumerate(deltas)]
        landed = [flight.land(self.peer_id) for flight in flights]
        nodes = [[each.party for each in one.table.rows] for one in landed]
        self.found[round] = [each.party for each in peers], nodes, [float(each) for each in deltas]

    def delta(self, round, fragment, number):
        """What this group's rank of a node brings, told apart by its digits."""
        return float(10 ** (number - 1) * (1 + self.place + 3 * fragment + round % 2))

    def wait(self, kind, what):
        """Until the play goes on with this."""
        self.answer, self.wants, self._go = None, (kind, what), threading.Event()
        self.at = kind
        self._play.wake.set()
        assert self._go.wait(HANG_S)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def go_on(self, answer):
        self.answer, self.at = answer, "here"
        self._go.set()

    def _exchange(self, own):
        return self.wait("exchange", own)

    # ── what it asks of its Communicator ─────────────────────────────────────────────────────────────────────────────

    def all_gather(self, packed, tag, retry):
        info = self.all_reduce_many([], tag, None, packed, retry, True).wait()
        return SimpleNamespace(info=info, output=info.gathered)

    def all_reduce_many(self, tensors, tag, quantize, gather, retry, async_op):
        if len(self._play.members()) < 2:
            raise TooFewPeers("alone")
        call = SimpleNamespace(rank=self, tag=tag, tensors=tensors, own=[*map(torch.clone, tensors)], gather=gather)
        self._play.calls[self.place][tag][self.node.number] = call
        call.wait = lambda: self.wait("collective", tag)
        call.committed = None
        return call


class Play:
    """Nodes of a rank in each group, by lot."""

    def __init__(self, seed):
        self.dice, self.wake = random.Random(seed), threading.Event()
        self.groups, self.deaths, self.round = self.dice.choice([2, 2, 3]), self.dice.randrange(4), 0
        self.calls = [{tag: {} for tag in (*range(FRAGMENTS), ROLL_CALL)} for _ in range(self.groups)]
        self.done = [{} for _ in range(self.groups)]
        """By group: committed results that ranks have not asked for yet."""
        self.nodes, self.dead = [], []
        for number in range(1, self.dice.choice([3, 4]) + 1):
            node = SimpleNamespace(number=number)
            node.ranks = [Rank(self, node, place) for place in range(self.groups)]
            self.nodes.append(node)
        self.admitted = self.nodes[: self.dice.choice([2, 3])]
        """The others join later, all in one round."""

    def members(self):
        return [each for each in self.admitted if each not in self.dead]

    def play(self):
        ranks = [rank for node in self.nodes for rank in node.ranks]
        threads = [threading.Thread(target=rank.run, daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        while self.settled() and any(rank.at != "done" for node in self.members() for rank in node.ranks):
            if self.dice.random() < DEADLY and len(self.dead) < self.deaths and len(self.members()) > 1:
                self.kill(self.dice.choice(self.members()))
                continue
            deeds = self.deeds()
            assert deeds, [(rank.peer_id, rank.at, rank.wants) for node in self.members() for rank in node.ranks]
            self.dice.choice(deeds)()
        for thread in threads:
            thread.join(HANG_S)

    def settled(self):
        """All ranks wait for something, or have ended."""
        ranks = [rank for node in self.nodes for rank in node.ranks]
        while any(rank.at == "here" for rank in ranks):
            self.wake.wait(0.01)
            self.wake.clear()
        assert not [rank.at for rank in ranks if rank.at.startswith("failed")], [rank.at for rank in ranks]
        return True

    def deeds(self):
        """All that may happen next."""
        found = [lambda node=node: self.exchange(node) for node in self.members() if self.exchanges(node)]
        if all(rank.at == "admit" for node in self.members() for rank in node.ranks):
            found.append(self.admit)
        for group in range(self.groups):
            found += [lambda group=group, tag=tag: self.commit(group, tag) for tag in self.ready(group)]
            here = [node.ranks[group] for node in self.members()]
            found += [lambda rank=rank: self.tell(rank) for rank in here if self.is_told(rank)]
        return found

    def admit(self):
        """All have voted for it."""
        if self.round:
            self.admitted = list(self.nodes)
        for node in self.members():
            for rank in node.ranks:
                rank.go_on(self.round)
        self.round += 1

    def exchanges(self, node):
        return all(rank.at == "exchange" for rank in node.ranks)

    def exchange(self, node):
        told = [rank.wants[1] for rank in node.ranks]
        for rank in node.ranks:
            rank.go_on(list(told))

    def ready(self, group):
        numbers = [node.number for node in self.members()]
        return [tag for tag, calls in self.calls[group].items() if calls and all(each in calls for each in numbers)]

    def commit(self, group, tag):
        """Of all that are here, who learn of it one by one."""
        calls = [self.calls[group][tag].pop(node.number) for node in self.members()]
        self.calls[group][tag].clear()
        for call in calls:
            result = TooFewPeers("alone") if len(calls) == 1 else None
            if result is None:
                for number, tensor in enumerate(call.tensors):
                    tensor.copy_(sum(each.own[number] for each in calls))
                    call.rank.feedback.counted[tag] += 1
                peers = tuple(each.rank.peer_id for each in calls)
                result = ReduceInfo(len(calls), 0, 0, peers, gathered=tuple(each.gather for each in calls))
            self.done[group][call.rank.node.number, tag] = result

    def is_told(self, rank):
        return rank.at == "collective" and (rank.node.number, rank.wants[1]) in self.done[rank.place]

    def tell(self, rank):
        rank.go_on(self.done[rank.place].pop((rank.node.number, rank.wants[1])))

    def kill(self, node):
        """With all its ranks, for it is a party."""
        self.dead.append(node)
        for rank in node.ranks:
            if rank.at not in ("done", "dead"):
                rank.go_on(Dead())


@pytest.mark.parametrize("seeds", [range(at, at + 25) for at in range(0, 100, 25)], ids=lambda seeds: seeds[0])
def test_all_nodes_add_up_the_same_deltas_however_others_die(seeds):
    for seed in seeds:
        play = Play(seed)
        play.play()
        ranks = [rank for node in play.members() for rank in node.ranks]
        for round in range(ROUNDS):
            there = [rank for rank in ranks if round in rank.found]
            among = [rank.found[round][:2] for rank in there]  # None, if all that were there have died since.
            assert all(each == among[0] for each in among), f"seed {seed}, round {round}"
            for rank in there:
                _, nodes, deltas = rank.found[round]
                for fragment, (numbers, total) in enumerate(zip(nodes, deltas, strict=True)):
                    assert total == sum(rank.delta(round, fragment, each) for each in numbers), f"seed {seed}"
        for rank in ranks:
            with_others = [len(numbers) > 1 for _, nodes, _ in rank.found.values() for numbers in nodes]
            assert sum(rank.feedback.counted) == sum(with_others), f"seed {seed}: {rank.peer_id}"
