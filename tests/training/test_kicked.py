"""A peer that an operator puts out in the middle of a round joins again by itself, and trains on with the others."""

import io
import threading

import pytest
import torch

from pccl.cli.kick import kick
from pccl.training import DiLoCo
from tests.training import oracle
from tests.training.test_leases import Book, Counted, learn, trainer

MODES = {
    "plain": {},
    "overlapped": {"overlap": 2},
    "streaming": {"fragments": 3, "overlap": 1},
    "delayed": {"overlap": "round"},
}
EVERY = 4


def put_out(crew, run):
    told = io.StringIO()
    assert kick(run.communicator.peer_id, "it is wanted elsewhere", crew.address, told) == 0
    assert "is out of the run" in told.getvalue()


@pytest.mark.parametrize("mode", MODES)
def test_a_kicked_peer_joins_again_and_all_hold_equal_bits(crew, mode, caplog):
    done, seen = threading.Event(), ({}, {})

    def both(since=0):
        return {each for each in set(seen[0]) & set(seen[1]) - {None} if each > since}

    def act(number):
        model, digests = oracle.make_model(), seen[number]
        optimizer = oracle.make_optimizer(model, oracle.STEADY)

        def go():
            oracle.inner_step(model, optimizer, number, run.step)
            digests.setdefault(run.metrics().get("merged_round"), run.outer_digest())

        with DiLoCo(crew.address, model, optimizer, sync_every=EVERY, **MODES[mode]) as run:
            while len(run.communicator.ring) < 2:
                go()
            if not number:
                while not done.is_set():
                    go()
                return set()
            for _ in range(2 * EVERY + 1):
                go()
            before = run.communicator.peer_id
            put_out(crew, run)
            while run.communicator.peer_id == before or len(run.communicator.ring) < 2:
                go()
            since = run.round
            while len(both(since)) < 3:
                go()
            done.set()
            return {before, run.communicator.peer_id}

    _, names = crew.together(2, act)
    assert len(both()) > 3, "they have merged no round together before"
    assert all(seen[0][each] == seen[1][each] for each in both())
    assert len(names) == 2
    assert "it is wanted elsewhere. Joining again (1 of 3)" in caplog.text


@pytest.mark.parametrize("options", [{}, {"overlap": 2}, {"fragments": 2, "overlap": 1}], ids=str)
@pytest.mark.parametrize("peers", [1, 2])
def test_samples_that_were_leased_to_a_kicked_peer_count_once(crew, peers, options):
    """Alone it leases for the same round once more, and the batches that it was about to give are of another lease."""
    dataset, book = Counted(300), Book()
    made = [trainer(crew, dataset, min_peers=peers, **options) for _ in range(peers)]

    def act(number):
        run, model, optimizer = made[number]
        batches = run.batches(dataset, 5, epochs=1)
        book.follow(run)
        with run:
            for place, (numbers,) in enumerate(batches):
                book.note(run, numbers)
                if number == 0 and place == 10:
                    put_out(crew, run)
                learn(model, optimizer, numbers)

    crew.together(peers, act)
    assert sorted(book.used()) == list(range(300))
    assert torch.isfinite(next(made[0][1].parameters())).all()
