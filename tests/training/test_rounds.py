"""What a run does when something is not as it should be: deltas that are not finite, settings and counts that differ,
outer states that drifted, peers that come late."""

import logging
import threading

import pytest
import torch
from torch import nn

from pccl import Communicator, MasterNode, UsageError
from pccl.training import DiLoCo
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_oracle import close

EVERY = 3


def train(run, model, optimizer, number, steps, first=0):
    for step in range(first, first + steps):
        oracle.inner_step(model, optimizer, number, step)


def make(crew, number, **options):
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    return DiLoCo(crew.address, model, optimizer, sync_every=EVERY, **options), model, optimizer


def spoil(model):
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")


def test_a_delta_that_is_not_finite_is_left_out_and_its_peer_is_reset(crew):
    made = [make(crew, number, min_peers=3) for number in range(3)]
    expected, _ = oracle.train(2, 1, EVERY, 0.7, 0.9)

    def act(number):
        run, model, optimizer = made[number]
        with run:
            for step in range(EVERY):
                if number == 2 and step == EVERY - 1:
                    spoil(model)
                oracle.inner_step(model, optimizer, number, step)
            after = run.outer_parameters()
            train(run, model, optimizer, number, EVERY)
            return after, run.outer_digest(), dict(model.named_parameters())

    told = crew.together(3, act)
    assert len({digest for _, digest, _ in told}) == 1
    for after, _, model in told:
        close(after, expected.theta)
        assert all(bool(torch.isfinite(each).all()) for each in model.values())


def test_when_none_is_finite_nothing_moves_and_the_third_time_is_an_error(crew):
    made = [make(crew, number, min_peers=2) for number in range(2)]

    def act(number):
        run, model, optimizer = made[number]
        digests = set()

        def spoiled():
            with run:
                for step in range(4 * EVERY):
                    spoil(model)
                    digests.add(run.outer_digest())
                    oracle.inner_step(model, optimizer, number, step)

        with pytest.raises(FloatingPointError, match="3 rounds in a row"):
            spoiled()
        return digests, run.round

    for digests, _ in crew.together(2, act):
        assert len(digests) == 1


def test_settings_that_differ_are_refused_with_both_values(crew):
    made = [make(crew, 0), make(crew, 1, outer_lr=0.5)]
    joined, done = threading.Event(), threading.Event()

    def act(number):
        run, model, optimizer = made[number]
        if number == 0:
            with run:
                joined.set()
                while not done.is_set():
                    train(run, model, optimizer, 0, 1)
            return None
        joined.wait(HANG_S)
        with pytest.raises(UsageError) as raised, run:
            pass
        done.set()
        return str(raised.value)

    _, reason = crew.together(2, act)
    assert "outer_lr=None" in reason
    assert "outer_lr=0.5" in reason


def test_a_peer_that_counts_no_tokens_is_refused_and_the_others_make_the_round(crew):
    made = [make(crew, number, min_peers=2) for number in range(3)]
    outer, _ = oracle.train(2, 2, EVERY, 0.7, 0.9)
    inside = [threading.Event(), threading.Event()]

    def act(number):
        run, model, optimizer = made[number]
        if number == 2:
            assert all(each.wait(HANG_S) for each in inside)  # with one of them alone it would make rounds of steps
            with pytest.raises(UsageError, match="count_tokens"), run:
                train(run, model, optimizer, number, EVERY)
            return None
        with run:
            inside[number].set()
            while len(run.communicator.ring) < 3:  # so that all three begin together
                run.finish_round()
            base = run.round
            for step in range(2 * EVERY):
                run.count_tokens(10)
                oracle.inner_step(model, optimizer, number, step)
            assert run.round == base + 2
            return run.outer_parameters()

    for found in crew.together(3, act)[:2]:
        close(found, outer.theta)


def test_an_outer_state_that_drifted_is_replaced_by_that_of_the_others(crew, caplog):
    made = [make(crew, number, min_peers=3) for number in range(3)]

    def act(number):
        run, model, optimizer = made[number]
        with run:
            train(run, model, optimizer, number, EVERY)
            if number == 1:
                fragment = run._contents.fragments[0]
                fragment.theta[7] += 1e-3
                fragment._digest = None
            train(run, model, optimizer, number, EVERY)
            return run.outer_digest()

    assert len(set(crew.together(3, act))) == 1
    assert "is not that of the others" in caplog.text


def test_a_newcomer_never_overrules_a_run_that_began_alone(crew):
    """The run's first sync was at round 0, which is where a newcomer is."""
    first, second = make(crew, 0), make(crew, 1)
    alone, joined = threading.Event(), threading.Event()

    def act(number):
        run, model, optimizer = (first, second)[number]
        if number:
            alone.wait(HANG_S)
        with run:
            if number:
                joined.set()
                return run.round
            while not joined.is_set():
                oracle.inner_step(model, optimizer, 0, run.step)
                if run.round == 5:
                    alone.set()
        return run.round

    rounds = crew.together(2, act)
    assert 5 <= rounds[1] <= rounds[0]


def test_a_late_peer_gets_state_optimizer_and_learning_rate_and_takes_part(crew):
    made = [make(crew, number, min_peers=1) for number in range(3)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each[2], 0.99) for each in made]
    for run, scheduler in zip((each[0] for each in made), schedulers, strict=True):
        run._scheduler = scheduler
    two_are_in, third_is_in = threading.Event(), threading.Event()

    def act(number):
        run, model, optimizer = made[number]
        if number == 2:
            two_are_in.wait(HANG_S)
        with run:
            if number < 2:
                while len(run.communicator.ring) < 2 or run.round < 3:
                    oracle.inner_step(model, optimizer, number, run.step)
                    schedulers[number].step()
                two_are_in.set()
                while not third_is_in.is_set():
                    oracle.inner_step(model, optimizer, number, run.step)
                    schedulers[number].step()
            else:
                assert run.round >= 3
                assert optimizer.state[next(model.parameters())]["momentum_buffer"].abs().sum() > 0
                assert schedulers[2].last_epoch == run.step
                third_is_in.set()
            at = run.round
            return at, optimizer.param_groups[0]["lr"]

    told = crew.together(3, act)
    assert told[2][1] == pytest.approx(0.05 * 0.99 ** (made[2][0].round * EVERY))


class WithBuffers(nn.Module):
    def __init__(self, value, count):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("mean", torch.tensor([value, 2 * value]))
        self.register_buffer("seen", torch.tensor(count))


@pytest.mark.parametrize("buffers", ["mean", "local"])
def test_buffers_are_averaged_exactly_and_integers_take_the_largest(crew, buffers):
    models = [WithBuffers(1.0 + number, 5 * number) for number in range(2)]

    def act(number):
        model = models[number]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with DiLoCo(crew.address, model, optimizer, sync_every=1, min_peers=2, quantize="int8", buffers=buffers) as run:
            model.mean.copy_(torch.tensor([1.0 + number, 2.0 + 2 * number]))
            model.seen.fill_(5 * number)
            run.count_tokens(1 + 2 * number)
            model.layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return run.round, model.mean.tolist(), int(model.seen)

    expected = [[1.75, 3.5], 5]
    for number, (rounds, mean, seen) in enumerate(crew.together(2, act)):
        assert rounds == 1
        assert [mean, seen] == (expected if buffers == "mean" else [[1.0 + number, 2.0 + 2 * number], 5 * number])


def test_a_delta_far_longer_than_the_others_is_shortened(crew, caplog):
    made = [make(crew, number, min_peers=3, clip=2.0) for number in range(3)]

    def act(number):
        run, model, optimizer = made[number]
        with run:
            train(run, model, optimizer, number, EVERY)
            before = run.metrics()["delta_norm"]
            with torch.no_grad():
                next(model.parameters()).mul_(1000.0 if number == 0 else 1.0)
            train(run, model, optimizer, number, EVERY)
            return before, run.metrics()

    told = crew.together(3, act)
    assert "shortened" in caplog.text
    limit = 2.0 * sorted(before for before, _ in told)[1]
    assert told[0][1]["delta_norm"] == pytest.approx(limit)
    assert all(metrics["mean_norm"] <= limit for _, metrics in told)


def test_alone_it_goes_on_and_says_so(crew, caplog):
    caplog.set_level(logging.INFO, "pccl.training")
    run, model, optimizer = make(crew, 0)
    expected, _ = oracle.train(1, 3, EVERY, 0.7, 0.9)
    with run:
        train(run, model, optimizer, 0, 3 * EVERY)
        metrics = run.metrics()
        close(run.outer_parameters(), expected.theta)
    assert "round 3: alone" in caplog.text
    assert (metrics["round"], metrics["step"], metrics["peers"]) == (3, 3 * EVERY, 1)
    assert 0 < metrics["utilisation"] <= 1
    assert {"tokens_per_s", "tx_bytes", "waited_s", "waited_for", "cosine", "delta_norm", "loss"} <= set(metrics)


def test_when_the_master_is_lost_for_good_it_joins_the_next_one_with_its_steps(crew, monkeypatch):
    monkeypatch.setenv("PCCL_MASTER_TIMEOUT_S", "0.5")
    run, model, optimizer = make(crew, 0)
    expected, _ = oracle.train(1, 3, EVERY, 0.7, 0.9)
    with run:
        train(run, model, optimizer, 0, EVERY + 1)
        place, first = crew.master.port, run.communicator.peer_id
        crew.master.interrupt()
        again = threading.Timer(2.0, lambda: setattr(crew, "master", MasterNode(f"127.0.0.1:{place}")))
        again.start()
        again.join()
        crew.master.run()
        train(run, model, optimizer, 0, 2 * EVERY - 1, EVERY + 1)
        assert run.communicator.peer_id != first
        assert run.metrics()["dropped_rounds"] == 0
        close(run.outer_parameters(), expected.theta)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sync_every": 0}, "sync_every must be at least 1, got 0"),
        ({"quantize": "int3"}, "a codec must be one of"),
        ({"overlap": 3}, "overlap must be from 0 to sync_every - 1"),
        ({"overlap": "often"}, "overlap must be a number of steps"),
        ({"eager": True}, 'eager is for overlap="round"'),
        ({"overlap": "round", "mix": 0.5}, 'mix must be 0 with overlap="round", .* got 0.5'),
        ({"warmup_steps": 3}, 'warmup_steps must be 0 with join="holder", .* got 3; pass join="fresh"'),
        ({"fragments": 2, "overlap": "round"}, "overlap must be a number of steps with fragments"),
        ({"fragments": 4}, "fragments must be at most"),
        ({"weigh": "size"}, "weigh must be one of"),
        ({"outer_lr": -1}, "outer_lr must be a number from 0"),
        ({"sync_evry": 3}, "sync_evry must be one of its settings"),
    ],
)
def test_wrong_settings_are_named(options, sentence):
    model = oracle.make_model()
    with pytest.raises(UsageError, match=sentence):
        DiLoCo("127.0.0.1:1", model, oracle.make_optimizer(model), **{"sync_every": EVERY, **options})


def test_rates_that_diverge_with_a_round_of_delay_are_warned_of(caplog):
    model = oracle.make_model()
    DiLoCo("127.0.0.1:1", model, oracle.make_optimizer(model), overlap="round", outer_momentum=0.9)
    assert "unstable in this mode" in caplog.text
    caplog.clear()
    for options in ({}, {"overlap": "round"}, {"overlap": "round", "eager": True}, {"overlap": 5}):
        DiLoCo("127.0.0.1:1", model, oracle.make_optimizer(model), **options)
    assert not caplog.text


def test_with_the_pace_of_speed_a_slow_peer_makes_fewer_steps(crew):
    made = [make(crew, number, min_peers=2, pace="speed") for number in range(2)]
    pause = threading.Event()

    def act(number):
        run, model, optimizer = made[number]
        steps = []
        with run:
            for _ in range(6):
                at, made_here = run.round, 0
                while run.round == at:
                    pause.wait(0.15 if number else 0.01)
                    oracle.inner_step(model, optimizer, number, run.step)
                    made_here += 1
                steps.append(made_here)
        return steps, run.outer_digest()

    (fast, first), (slow, second) = crew.together(2, act)
    assert fast == [EVERY] * 6
    assert slow[0] == EVERY
    assert min(slow) < EVERY
    assert first == second


def test_a_fresh_optimizer_of_a_newcomer_warms_up(crew):
    first, late = make(crew, 0, join="fresh"), make(crew, 1, join="fresh", warmup_steps=4)
    trained, joined = threading.Event(), threading.Event()

    def act(number):
        run, model, optimizer = (first, late)[number]
        if number:
            trained.wait(HANG_S)
        with run:
            if not number:
                while not joined.is_set():
                    oracle.inner_step(model, optimizer, 0, run.step)
                    if run.round == 2:
                        trained.set()
                return []
            used = []
            optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
            joined.set()
            for step in range(EVERY - 1):
                oracle.inner_step(model, optimizer, 1, step)
            return [*used, optimizer.param_groups[0]["lr"]]

    rates = crew.together(2, act)[1]
    assert rates == pytest.approx([0.01, 0.02, 0.05])


def test_a_communicator_of_ones_own_is_taken(crew):
    model = oracle.make_model()
    expected, _ = oracle.train(1, 2, EVERY, 0.7, 0.9)
    with Communicator(crew.address) as mine:
        optimizer = oracle.make_optimizer(model)
        with DiLoCo(mine, model, optimizer, sync_every=EVERY) as run:
            assert run.communicator is mine
            for step in range(2 * EVERY):
                oracle.inner_step(model, optimizer, 0, step)
            close(run.outer_parameters(), expected.theta)
