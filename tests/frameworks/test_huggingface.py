"""Hugging Face's Trainer, two of them and more: a kill, a join, a resume, a notice."""

import signal
from types import SimpleNamespace

import pytest

from pccl import UsageError
from pccl.training.checkpoint import write
from tests.frameworks import fleet

fleet.needs("transformers", "accelerate")

PEER = "tests.frameworks.hf_peer"


def test_one_is_killed_and_one_joins(master, processes, tmp_path):
    fleet.one_is_killed_and_one_joins(processes, PEER, master.address, tmp_path)


def test_all_are_killed_and_go_on(master, processes, tmp_path):
    fleet.all_are_killed_and_go_on(processes, PEER, master.address, tmp_path, lambda folder: True)


def test_a_notice_ends_the_round_saves_and_ends_the_training(master, processes, tmp_path):
    told = {"options": {"sync_every": fleet.EVERY}, "save_every": 10**6, "step_s": 0.02}
    (peer,) = fleet.start(processes, PEER, master.address, tmp_path, 1, **told)
    peer.go()
    peer.expect("round")
    peer.signal(signal.SIGTERM)
    saved = peer.expect("saved")["step"]
    assert saved % fleet.EVERY == 0
    assert peer.expect("done")["step"] == saved
    assert peer.process.wait() == 0
    assert (tmp_path / "0" / f"checkpoint-{saved}" / "pccl.pt").exists()


def test_a_checkpoint_that_a_kill_has_cut_off_is_passed_over(tmp_path, caplog):
    from pccl.integrations.huggingface import _saved

    for step in (20, 40, 60):
        write(tmp_path / f"checkpoint-{step}" / ("pccl.pt" if step < 60 else "other.pt"), {"round": step})
    (tmp_path / "runs").mkdir()
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    assert _saved(arguments, SimpleNamespace(global_step=0)) is None
    assert _saved(arguments, SimpleNamespace(global_step=40)) == {"round": 40}
    assert not caplog.text
    assert _saved(arguments, SimpleNamespace(global_step=60)) == {"round": 40}
    assert "no pccl.pt in the checkpoint of step 60" in caplog.text
    with pytest.raises(UsageError, match="got none up to step 10"):
        _saved(arguments, SimpleNamespace(global_step=10))
