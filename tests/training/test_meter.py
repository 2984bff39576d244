"""What peers tell each other of their speed, by a clock that goes on by a second in each step and in each wait; and the
figures that a run tells."""

import logging
import threading
from types import SimpleNamespace

import pytest

from pccl import ReduceInfo
from pccl.training import DiLoCo, meter
from pccl.training.group import Flight, Landed
from pccl.training.meter import Meter
from pccl.training.outer import Stepped
from pccl.training.rows import Row, Table
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


def test_the_line_of_a_round_and_its_figures(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pccl.training")
    at = [0.0]
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: at[0]))
    told = Meter(lambda peer: f"tokyo ({peer})")
    told.start()
    at[0] += 3.0
    told.stop()
    rows = (
        Row(steps=6, tokens=600, loss=1.0, norm=0.5, computed_s=3.0, reduced_s=0.5),
        Row(steps=6, tokens=40, loss=2.0, norm=0.7, computed_s=4.5, reduced_s=0.5),
        Row(loss=9.0),
    )
    landed = Landed(Table(("a", "b", "c"), rows), False, False, ReduceInfo(3, 1000, 2000, ("a", "b", "c"), seconds=0.5))
    at[0] += 1.0
    told.moved(landed)
    told.stepped(Stepped(0.25, 0.75))
    told.landed(7, landed, "a")
    expected = {
        "peers": 3,
        "utilisation": 0.75,
        "tokens_per_s": 150.0,
        "tx_bytes": 1000,
        "rx_bytes": 2000,
        "dropped_rounds": 0,
        "sync_bytes": 0,
        "mean_norm": 0.25,
        "cosine": 0.75,
        "merged_round": 7,
        "seconds": 4.0,
        "waited_s": 1.0,
        "waited_for": "tokyo (b)",
        "loss": 1.5,
        "steps": 6,
        "delta_norm": 0.5,
        "reduced_s": 0.5,
        "bytes": 1000,
    }
    assert told.metrics() == expected
    assert caplog.messages == ["round 7: 3 peers, 4.0 s, waited 1.0 s for tokyo (b), 0.016 Mbit/s, loss 1.5"]


def test_before_the_first_round_its_figures_are_there_and_none(crew):
    model = oracle.make_model()
    run = DiLoCo(crew.address, model, oracle.make_optimizer(model), sync_every=EVERY)
    with run:
        before = run.metrics()
        for step in range(EVERY):
            oracle.inner_step(model, run._optimizers[0], 0, step)
        after = run.metrics()
    assert set(before) == set(after)
    assert {name for name, each in before.items() if each is None} == set(meter.OF_A_ROUND)
    assert None not in after.values()
    assert before["peers"] == 1


def test_a_run_has_the_time_between_its_beginning_and_its_end(crew, monkeypatch):
    """What comes before it is entered, the wait for its last result, and what comes after are no steps."""
    at, land = [0.0], Flight.land
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: at[0]))

    def wait(flight, me):
        at[0] += 6.0
        return land(flight, me)

    model = oracle.make_model()
    run = DiLoCo(crew.address, model, oracle.make_optimizer(model), sync_every=EVERY, overlap=2)
    at[0] += 100.0  # Data are loaded.
    with run:
        monkeypatch.setattr(Flight, "land", wait)
        for step in range(EVERY):
            at[0] += 1.0
            oracle.inner_step(model, run._optimizers[0], 0, step)
        assert run.metrics()["utilisation"] == 1.0
    at[0] += 100.0  # It is evaluated.
    assert run.metrics()["utilisation"] == 0.5
    assert run.metrics()["waited_s"] == 6.0


def test_a_line_has_the_rate_of_a_reduction_where_a_round_has_several_and_the_loss_of_those_that_tell_one(
    monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "pccl.training")
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: 0.0))
    told, rows = Meter(str), (Row(steps=6, loss=1.5), Row(steps=6))
    landed = Landed(Table(("a", "b"), rows), False, False, ReduceInfo(2, 10**6, 0, ("a", "b"), seconds=2.0))
    for _ in range(3):
        told.moved(landed)
    told.landed(7, landed, "a")
    assert told.metrics()["bytes"] == 3 * 10**6
    assert caplog.messages == ["round 7: 2 peers, 0.0 s, waited 0.0 s, 4 Mbit/s, loss 1.5"]
