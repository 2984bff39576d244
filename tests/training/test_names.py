"""The names that peers share: those of the model, whatever it is wrapped in."""

import pytest
import torch
from torch import nn

from pccl.training import DataParallel, DiLoCo
from tests.training import oracle


class Nested(nn.Module):
    """A child that is called as the wrappers of torch call theirs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.module = nn.Linear(3, 1, bias=False)
        self.module.register_buffer("mean", torch.zeros(1))
        self.register_buffer("mean", torch.ones(1))


def run_of(model, kind=DiLoCo):
    return kind("127.0.0.1:1", model, oracle.make_optimizer(model))


@pytest.mark.parametrize("kind", [DiLoCo, DataParallel])
def test_a_child_with_the_name_of_a_wrapper_is_a_child(kind):
    run = run_of(Nested(), kind)
    assert {name: each.numel() for name, each in run.outer_parameters().items()} == {"weight": 2, "module.weight": 3}
    assert set(run.state_dict()["buffers"]) == {"mean", "module.mean"}


def part_compiled():
    model = oracle.make_model()
    model[2] = torch.compile(model[2])
    return model


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WRAPPED = {
    "compiled": lambda: torch.compile(oracle.make_model()),
    "part compiled": part_compiled,
    "distributed": lambda: nn.parallel.DistributedDataParallel(oracle.make_model()),
    "both": lambda: torch.compile(nn.parallel.DistributedDataParallel(oracle.make_model())),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, while it imports its compiler
@pytest.mark.parametrize("wrap", WRAPPED)
def test_a_wrapped_model_and_a_plain_one_share_names(wrap, group):
    """The wrappers are not run: names are all that is asked of them."""
    run, plain = run_of(WRAPPED[wrap]()), run_of(oracle.make_model())
    assert list(run.outer_parameters()) == list(plain.outer_parameters())
    assert run.outer_digest() == plain.outer_digest()
    run.load_state_dict(plain.state_dict())
