"""What peers tell each other of their speed, by a clock that goes on by a second in each step and in each wait."""

import threading
from types import SimpleNamespace

import pytest

from pccl.training import DiLoCo, meter
from pccl.training.group import Flight
from tests.patience import HANG_S
from tests.training import oracle

EVERY, ROUNDS = 6, 5
MODES = {
    "plain": {},
    "overlapped": {"overlap": 4},
    "auto": {"overlap": "auto"},
    "streaming": {"fragments": 3, "overlap": 1},
    "delayed": {"overlap": "round"},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_round_tells_the_time_of_its_steps_wherever_it_is_merged(crew, monkeypatch, mode):
    """With overlap it is merged in the middle of the next one: the time since then is that of a few steps only."""
    at, land = [0.0], Flight.land
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: at[0]))

    def wait(flight, me):
        at[0] += 1.0
        return land(flight, me)

    monkeypatch.setattr(Flight, "land", wait)
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    told = []
    with DiLoCo(crew.address, model, optimizer, sync_every=EVERY, **MODES[mode]) as run:
        landed = run._meter.landed

        def note(number, result, me):
            told.extend((row.steps, row.computed_s) for row in result.table.rows)
            landed(number, result, me)

        run._meter.landed = note
        for step in range(EVERY * ROUNDS):
            at[0] += 1.0
            oracle.inner_step(model, optimizer, 0, step)
        assert run.metrics()["utilisation"] == pytest.approx(EVERY * ROUNDS / at[0], abs=0.05)
    assert told == [(EVERY, float(EVERY))] * ROUNDS
    assert run._meter._own_speed == 1.0


def test_a_newcomer_leaves_no_step_of_the_others_out_of_their_weights(crew):
    """All meet at the end of a round, between two launches of most fragments."""
    told, joined = [], threading.Event()

    def act(number):
        model = oracle.make_model()
        optimizer = oracle.make_optimizer(model, oracle.STEADY)
        run = DiLoCo(crew.address, model, optimizer, sync_every=EVERY, fragments=3, overlap=1)
        launch = run._launch

        def note(fragment, last):
            told.append((fragment, run._row(fragment, 0.0).steps, run._clock))
            launch(fragment, last)

        if number:
            assert begun.wait(HANG_S)
        else:
            run._launch = note
        with run:
            if number:
                joined.set()
                while run.round < rounds[0] + 2:
                    oracle.inner_step(model, optimizer, number, run.step)
                return
            while not joined.is_set() or len(run.communicator.ring) < 2:
                oracle.inner_step(model, optimizer, number, run.step)
                if run.round == 2:
                    begun.set()
            rounds[0] = run.round
            while run.round < rounds[0] + 2:
                oracle.inner_step(model, optimizer, number, run.step)

    begun, rounds = threading.Event(), [10**6]
    crew.together(2, act)
    made = [0, 0, 0]
    for fragment, steps, clock in told:
        made[fragment] += steps
        assert made[fragment] == clock
