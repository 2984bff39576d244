"""What is saved is copied to the host at once: a device that a model just fits on has no room for another one of it."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from pccl.training import DataParallel, DiLoCo
from pccl.training.contents import on_host
from tests.training import oracle


class Elsewhere(torch.Tensor):
    """As on a device: counts what is allocated there, and what comes from there to the host is a plain tensor."""

    allocated = 0

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        with torch._C.DisableTorchFunctionSubclass():
            plain = function(*arguments, **(options or {}))
        if function is torch.Tensor.to:
            assert arguments[1] == "cpu"
            return plain.as_subclass(torch.Tensor)
        if function in (torch.Tensor.clone, torch.Tensor.__deepcopy__):
            cls.allocated += 1
        return plain.as_subclass(cls) if isinstance(plain, torch.Tensor) and function is torch.Tensor.detach else plain


@pytest.mark.parametrize("kind", [DiLoCo, DataParallel])
def test_a_checkpoint_takes_no_memory_of_the_device(crew, kind):
    model = oracle.make_model()
    model.register_buffer("mean", torch.ones(3))
    model.register_parameter("frozen", torch.nn.Parameter(torch.ones(3), requires_grad=False))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    run = kind(crew.address, model, optimizer)
    oracle.inner_step(model, optimizer, 0, 0)
    expected = run.state_dict()
    model.mean = model.mean.as_subclass(Elsewhere)
    for state in optimizer.state.values():
        state.update({key: value.as_subclass(Elsewhere) for key, value in state.items()})
    Elsewhere.allocated = 0
    saved = run.state_dict()
    assert Elsewhere.allocated == 0
    pairs = list(zip(tree_leaves(saved), tree_leaves(expected), strict=True))
    for found, wanted in pairs:
        assert type(found) is type(wanted)
        assert torch.equal(found, wanted) if isinstance(found, torch.Tensor) else found == wanted
    # A copy: steps that follow do not reach it.
    oracle.inner_step(model, optimizer, 0, 1)
    assert saved["optimizers"][0]["state"][0]["step"] == 1


def test_what_is_no_tensor_is_copied_too():
    groups = [{"betas": (0.9, 0.95), "lr": torch.tensor(0.1), "params": [0, 1]}, {"lr": 0.3, "params": []}]
    copied = on_host(groups)
    assert copied == groups
    groups[0]["params"].append(2)
    groups[0]["lr"].fill_(0.0)
    assert copied[0]["params"] == [0, 1]
    assert float(copied[0]["lr"]) == pytest.approx(0.1)
