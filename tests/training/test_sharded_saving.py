"""Checkpoints that ranks write together: what stands in their way is told by all, and what was left behind goes."""

import os
import shutil
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pccl import UsageError
from pccl.training import DiLoCo
from pccl.training.checkpoint import LEFT_S, Saver
from pccl.training.fsdp.checkpoint import found
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_processes import master, processes
from tests.training.test_sharded import PLAIN, logged, nodes

__all__ = ["master", "nodes", "processes"]


def test_a_rank_that_cannot_write_is_not_waited_for(nodes, tmp_path):
    """Its disk is full: what it writes by itself, before all of them write together, fails."""
    facts = {"rounds": 5, "checkpoint": str(tmp_path / "saved"), "options": {**PLAIN, "min_peers": 1}}
    node = nodes.start(**facts, fates={1: {"full": [1]}})
    for rank in node:
        assert rank.process.wait(timeout=HANG_S) not in (0, None)
        rank.drain()
    assert logged(node[1], "No space left")
    assert logged(node[0], "another rank of this node could not write")
    assert [each.name for each in (tmp_path / "saved").iterdir()] == ["round-000000001"]


@pytest.fixture
def run(tmp_path):
    """Of a node with a single rank, which is this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = fully_shard(oracle.make_model(), mesh=init_device_mesh("cpu", (1,)))
    made = DiLoCo("127.0.0.1:1", model, oracle.make_optimizer(model))
    made.checkpoint(str(tmp_path))
    yield made
    dist.destroy_process_group()


def save(run, round):
    run._saver.save(round, {**run.state_dict(), "round": round})
    run._saver.finish()


def aged(path, seconds):
    """As if nothing had been written there for so long."""
    for each in (*(path.iterdir() if path.is_dir() else ()), path):
        os.utime(each, (time.time() - seconds,) * 2)


def test_a_checkpoint_of_an_earlier_run_makes_way_and_one_of_another_node_of_this_machine_stays(run, tmp_path):
    for number in (1, 2):
        save(run, number)
    spoiled = tmp_path / "round-000000002"
    (spoiled / "run.pt").write_bytes(b"spoiled")
    aged(spoiled, 5)
    save(run, 2)
    assert run.resume(str(tmp_path))
    assert run.round == 2
    (spoiled / "of another node").touch()
    aged(spoiled, -5)
    save(run, 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["round-000000001", "round-000000002"]
    assert (spoiled / "of another node").exists()


def test_checkpoints_of_later_rounds_are_put_aside_by_the_first_rank(run, tmp_path, caplog):
    for number in (1, 2, 3):
        save(run, number)
        aged(tmp_path / f"round-00000000{number}", 5)
    run.checkpoint(str(tmp_path))
    run._saver._node = SimpleNamespace(place=1)
    run._saver.put_aside(1)
    assert len(found(tmp_path)) == 3
    run._saver._node = SimpleNamespace(place=0)
    run._saver.put_aside(1)
    assert [each.name for each in found(tmp_path)] == ["round-000000001"]
    assert "up to 3" in caplog.text
    (aside,) = tmp_path.glob("earlier-*")
    assert run.resume(str(aside))
    assert run.round == 3


@pytest.mark.parametrize("whole", [False, True], ids=["sharded", "whole"])
def test_a_checkpoint_of_another_model_or_optimizer_is_refused_by_name(run, tmp_path, whole):
    """It can be read, so the one before it is not tried, and the run does not begin anew."""

    def made(optimizer=torch.optim.AdamW, layers=2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
        model = model if whole else fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        run = DiLoCo("127.0.0.1:1", model, optimizer(model.parameters()))
        run.checkpoint(str(tmp_path))
        return run

    save(made(), 1)
    save(made(), 2)
    again = made()
    assert again.resume(str(tmp_path))
    assert again.round == 2
    with pytest.raises(UsageError, match=r"hold '(outer\.)?2.weight' of shape \(4, 4\), as the model here does"):
        made(layers=3).resume(str(tmp_path))
    with pytest.raises(UsageError, match=r"not hold '(outer\.)?1.weight'"):
        made(layers=1).resume(str(tmp_path))
    for other in (torch.optim.SGD, torch.optim.Adam):
        with pytest.raises(UsageError, match=rf"those that were saved \(AdamW\), got {other.__name__}; make these"):
            made(other).resume(str(tmp_path))
    with pytest.raises(UsageError, match="as the model here does"):
        made().load_state_dict({**again.state_dict(), "outer" if whole else "tensors": {}})


@pytest.mark.parametrize("whole", [False, True], ids=["sharded", "whole"])
def test_what_killed_processes_had_begun_to_write_is_removed(run, tmp_path, whole):
    saver = Saver(tmp_path, 1, 3) if whole else run._saver
    saver.save(1, run.state_dict())
    saver.finish()
    (written,) = tmp_path.iterdir()
    for name in ("2.1a", "3.1b", "4.1c"):
        left = tmp_path / (f"round-00000000{name[0]}.pt{name[1:]}.7" if whole else f"round-00000000{name}")
        (shutil.copy if whole else shutil.copytree)(written, left)
    *_, old, partly = sorted(tmp_path.iterdir())
    for each in (old, partly):
        aged(each, LEFT_S + 5)
    if whole:
        partly.unlink()
    else:
        (partly / "run.pt").touch()  # A folder's own time does not change while a file in it grows.
    saver.save(5, run.state_dict())
    saver.finish()
    kept = [each.name for each in sorted(tmp_path.iterdir())]
    assert [each[:15] for each in kept] == [
        f"round-00000000{number}" for number in ((1, 2, 5) if whole else (1, 2, 4, 5))
    ]
