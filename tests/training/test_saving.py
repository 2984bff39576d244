"""Checkpoints: plain, whole, resumed by another number of peers, with every sample still counted once; and SIGTERM."""

import json
import re
import signal

import pytest
import torch

from pccl import UsageError
from pccl.training import DiLoCo
from pccl.training.checkpoint import found, newest, write
from tests.training import oracle
from tests.training.test_leases import Counted, learn, trainer
from tests.training.test_oracle import close
from tests.training.test_processes import Trainer, agree, master, processes

__all__ = ["master", "processes"]

EVERY = 3


def make(crew, **options):
    model = oracle.make_model()
    return DiLoCo(crew.address, model, oracle.make_optimizer(model), sync_every=EVERY, **options), model


def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped(crew, tmp_path):
    expected, _ = oracle.train(1, 6, EVERY, 0.7, 0.9)
    for first in (0, 3):
        run, model = make(crew)
        run.checkpoint(tmp_path, keep=2)
        assert run.resume(tmp_path) == (first > 0)
        with run:
            assert run.round == first
            for step in range(first * EVERY, (first + 3) * EVERY):
                oracle.inner_step(model, run._optimizers[0], 0, step)
                run._saver.finish()  # What a round ends while the last one is being written is left out.
    close(run.outer_parameters(), expected.theta)
    assert [path.name for path in found(tmp_path)] == ["round-000000006.pt", "round-000000005.pt"]


def test_a_new_run_puts_checkpoints_of_later_rounds_aside_and_keeps_its_own(crew, tmp_path, caplog):
    """In the folder of an earlier one, from which it was not resumed."""
    for rounds in (6, 2):
        run, model = make(crew)
        run.checkpoint(tmp_path)
        with run:
            for step in range(rounds * EVERY):
                oracle.inner_step(model, run._optimizers[0], 0, step)
                run._saver.finish()
    assert [path.name for path in found(tmp_path)] == ["round-000000002.pt", "round-000000001.pt"]
    (aside,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert [path.name for path in found(aside)] == [f"round-00000000{number}.pt" for number in (6, 5, 4)]
    (said,) = (each.getMessage() for each in caplog.records if "put aside" in each.getMessage())
    assert "of later rounds (up to 6) than that of this run (0)" in said
    assert run.resume(aside)
    assert run.round == 6


def test_what_another_peer_saves_in_the_same_folder_is_not_put_aside(crew, tmp_path):
    """It was written after this peer began to enter the run, and is a round ahead."""
    run, _ = make(crew)
    run.checkpoint(tmp_path)
    write(tmp_path / "round-000000001.pt", {})
    with run:
        assert len(found(tmp_path)) == 1
        run.checkpoint(tmp_path)  # Here it was there before, and is of an earlier run.
        assert not found(tmp_path)


@pytest.mark.parametrize("codec", ["int4", None])
def test_a_state_is_plain_and_comes_back_the_same(crew, tmp_path, codec):
    made = [make(crew, quantize=codec, min_peers=2) for _ in range(2)]

    def act(number):
        run, model = made[number]
        with run:
            for step in range(4 * EVERY):
                oracle.inner_step(model, run._optimizers[0], number, step)
            return run.state_dict()

    state = crew.together(2, act)[0]
    write(tmp_path / "round-000000004.pt", state)
    again, _ = make(crew, quantize=codec)
    again.load_state_dict(newest(tmp_path))
    assert again.outer_digest() == made[0][0].outer_digest()
    assert again.round == 4
    assert (again.state_dict()["feedback"] is None) == (codec is None)
    for name, each in again.state_dict()["outer"].items():
        assert torch.equal(each, state["outer"][name])


def test_a_run_may_be_resumed_with_another_number_of_fragments(crew):
    """What coding has lost is kept by fragment, and begins with nothing."""
    state = None
    for fragments in (1, 3):
        made = [make(crew, quantize="int4", min_peers=2, fragments=fragments) for _ in range(2)]

        def act(number, made=made, state=state):
            run, model = made[number]
            if state is not None:
                run.load_state_dict(state)
            with run:
                for step in range(2 * EVERY):
                    oracle.inner_step(model, run._optimizers[0], number, step)
                return run.state_dict()

        state = crew.together(2, act)[0]
    assert state["round"] == 4
    assert len(state["feedback"]) == 3


def test_what_cannot_be_read_is_passed_over_and_another_model_is_refused(crew, tmp_path, caplog):
    run, _ = make(crew)
    write(tmp_path / "round-000000001.pt", run.state_dict())
    (tmp_path / "round-000000002.pt").write_bytes(b"half a file")
    assert newest(tmp_path)["round"] == 0
    assert "cannot be read" in caplog.text
    other = DiLoCo("127.0.0.1:1", model := torch.nn.Linear(2, 2), oracle.make_optimizer(model))
    with pytest.raises(UsageError, match="as the model here does"):
        other.resume(tmp_path)
    assert not other.resume(tmp_path / "nothing")


def test_of_checkpoints_of_different_rounds_the_newest_wins(crew):
    saved = {}
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    with DiLoCo(crew.address, model, optimizer, sync_every=2) as run:
        for step in range(6):
            oracle.inner_step(model, optimizer, 0, step)
            saved[run.round] = run.state_dict()

    def act(number):
        model = oracle.make_model()
        run = DiLoCo(crew.address, model, oracle.make_optimizer(model), sync_every=2, min_peers=3)
        if number:
            run.load_state_dict(saved[1 + number])
        with run:
            return run.round, run.outer_parameters(), model

    for round, outer, model in crew.together(3, act):
        assert round == 3
        for name, each in saved[3]["outer"].items():
            assert torch.equal(outer[name], each)
            assert torch.equal(dict(model.named_parameters())[name].detach(), each)


def test_a_run_that_is_joined_takes_no_state(crew):
    run, _ = make(crew)
    with run, pytest.raises(UsageError, match="before the run is entered"):
        run.load_state_dict(run.state_dict())


@pytest.mark.parametrize("options", [{}, {"overlap": 2}], ids=str)
def test_resumed_by_more_peers_every_sample_counts_once_and_the_newest_wins(crew, tmp_path, options):
    dataset, committed = Counted(400), []
    run, model, optimizer = trainer(crew, dataset, **options)
    run.checkpoint(tmp_path)
    batches = run.batches(dataset, 5, epochs=1)
    with run:
        for (numbers,) in batches:
            if run.round == 3:
                break  # What was leased for this round is in no commit.
            committed.append((run.round, numbers.tolist()))
            learn(model, optimizer, numbers)
            run._saver.finish()
        kept = newest(tmp_path)
    # The outer state has these rounds; with overlap the last one was still under way.
    seen = [each for number, numbers in committed if number < (3 if not options else 2) for each in numbers]
    made = [trainer(crew, dataset, min_peers=3, **options) for _ in range(3)]

    def act(number):
        run, model, optimizer = made[number]
        if number:
            run.load_state_dict(kept)  # The first has none, and gets it.
        found_here = []
        batches = run.batches(dataset, 7, epochs=1)
        with run:
            assert run.round == 3
            for (numbers,) in batches:
                found_here += numbers.tolist()
                learn(model, optimizer, numbers)
        return found_here

    for found_here in crew.together(3, act):
        seen += found_here
    assert sorted(seen) == list(range(400))


@pytest.mark.parametrize("own", [False, True], ids=["address", "communicator"])
def test_sigterm_ends_the_round_saves_and_says_goodbye(master, processes, tmp_path, own):
    """Also with a Communicator that was passed, which by itself says goodbye on SIGTERM and ends the process. What is
    saved is of the round that was finished then, whichever others are."""
    told = {"rounds": 10**6, "step_s": 0.01, "options": {"sync_every": 20}, "own_communicator": own}
    stays = Trainer(master.address, 0, **told)
    goes = Trainer(master.address, 1, checkpoint=str(tmp_path), every=10**6, **told)
    processes.extend([stays, goes])
    goes.expect("joined")
    for _ in range(2):
        goes.expect("round")
    goes.signal(signal.SIGTERM)
    assert goes.process.wait() == 0
    last = [json.loads(line) for line in iter(goes._lines.get, None)]
    leaving = [each["text"] for each in last if each["event"] == "log"][-1]
    left = re.fullmatch(r"SIGTERM: leaving after round (\d+) with 0 steps in no round", leaving)
    (saved,) = found(tmp_path)
    kept = newest(tmp_path)
    assert saved.name == f"round-{kept['round']:09d}.pt"
    assert kept["round"] == int(left[1]) >= 2
    stays.expect("round")
    agree([stays, goes])


def test_sigterm_without_time_leaves_at_once(master, processes, tmp_path):
    told = {"rounds": 10**6, "step_s": 0.02, "options": {"sync_every": 20, "notice_s": 0.0}}
    goes = Trainer(master.address, 0, checkpoint=str(tmp_path), every=10**6, **told)
    processes.append(goes)
    goes.expect("round")
    goes.signal(signal.SIGTERM)
    assert goes.process.wait() == 0
    assert newest(tmp_path)["round"] >= 1
