"""Shared state of a model on a device: it follows the model, and only what must move is moved."""

import gc

import msgspec
import pytest
import torch

from pccl import Communicator, DataType, MasterNode, SharedState, SyncFailed, TensorInfo, UsageError
from pccl.dataplane.state.manifest import Entry, Holding, take_manifest
from pccl.dataplane.state.pulling import Pulling
from pccl.dataplane.tensors.elements import state_tensor
from pccl.training.state import make_state
from tests.device.conftest import succeed, together
from tests.e2e.test_api import address, connect_two
from tests.state.rig import STALL_S, Content, End, Rig, goal, holding

KIB = 1 << 10


class Network(torch.nn.Module):
    """Some megabytes of parameters, with buffers that cannot be reduced."""

    def __init__(self, seed, width=1200):
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, 8)
        self.register_buffer("mask", torch.rand(300) < 0.5)
        self.register_buffer("rotary", torch.randn(100, dtype=torch.complex64))

    def forward(self, values):
        return self.second(self.first(values))


@pytest.fixture(autouse=True)
def moved_in_place():
    """`module.to` puts parameters elsewhere and leaves them the same objects, as it does for CUDA: so optimizers keep
    theirs."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def equal(one, other):
    theirs = other.state_dict()
    return all(torch.equal(each.cpu(), theirs[name].cpu()) for name, each in one.state_dict().items())


def sync(pair, states, revisions=(1, 0)):
    for state, revision in zip(states, revisions, strict=True):
        state.revision = revision
    return succeed([lambda c=c, s=s: c.sync_shared_state(s) for c, s in zip(pair, states, strict=True)])


def moves(device):
    def data(module):
        for each in module.to(device.first).parameters():
            each.data = each.data.to(device.second)

    return {
        "to": lambda module: module.to(device.first),
        "data": data,
        "assign": lambda module: module.load_state_dict(Network(9).to(device.first).state_dict(), assign=True),
        "back": lambda module: module.to(device.first).cpu(),
    }


@pytest.mark.parametrize("move", ["to", "data", "assign", "back"])
def test_a_model_that_was_moved_is_synced_where_it_is(pair, device, move):
    source, target = Network(1), Network(2)
    states = [SharedState.from_module(each) for each in (source, target)]
    moves(device)[move](target)
    source.to(device.first)
    place = target.first.weight.device
    infos = sync(pair, states)
    assert equal(source, target)
    assert target.first.weight.device == place
    assert infos[1].rx_bytes > 5_000_000


def test_a_loaded_optimizer_is_synced_where_it_is(pair, device, backward):
    """Loading a checkpoint replaces the tensors of its state; those that are used then are synced."""
    modules = [Network(1).to(device.first), Network(1)]
    optimizers = [torch.optim.AdamW(each.parameters()) for each in modules]
    states = [SharedState.from_module(*each) for each in zip(modules, optimizers, strict=True)]
    sync(pair, states)
    modules[0](torch.ones(2, 1200, device=device.first)).sum().backward()
    optimizers[0].step()
    optimizers[0].load_state_dict(optimizers[0].state_dict())
    sync(pair, states, (2, 1))
    mine, theirs = (
        each.state[module.first.weight]["exp_avg"] for each, module in zip(optimizers, modules, strict=True)
    )
    assert mine.device == device.first
    assert theirs.abs().sum() > 0
    assert torch.equal(mine.cpu(), theirs)


def test_a_model_that_was_converted_is_refused_by_name(pair, device):
    module = Network(1).to(device.first)
    state = SharedState.from_module(module)
    module.half()
    with pytest.raises(UsageError, match=r"'module\.first\.weight' was made of 1440000 x FLOAT, .* x FLOAT16 now"):
        pair[0].sync_shared_state(state)


def test_a_newcomer_gets_model_and_optimizer_wherever_they_lie(device, backward):
    modules = [Network(1).to(device.first), Network(2)]
    optimizers = [torch.optim.AdamW(each.parameters()) for each in modules]
    modules[0](torch.ones(2, 1200, device=device.first)).sum().backward()
    optimizers[0].step()
    states = [SharedState.from_module(*each) for each in zip(modules, optimizers, strict=True)]
    with MasterNode("127.0.0.1:0") as master:
        one, other = connect_two(master)
        sync((one, other), states)
        assert equal(*modules)
        mine, theirs = (
            [optimizer.state[each]["exp_avg"].cpu() for each in module.parameters()]
            for module, optimizer in zip(modules, optimizers, strict=True)
        )
        assert all(torch.equal(*both) for both in zip(mine, theirs, strict=True))
        assert theirs[0].abs().sum() > 0
        one.close()
        other.close()


def test_describing_copies_nothing_and_a_sync_in_step_keeps_nothing(pair, ours):
    modules = [Network(1).to(ours.first) for _ in range(2)]
    ours.settle()
    before = ours.counts()
    states = [SharedState.from_module(each) for each in modules]
    assert ours.counts() == before
    sync(pair, states, (0, 0))
    gc.collect()
    after = ours.counts()
    total = 2 * sum(each.numel() * each.element_size() for each in modules[0].state_dict().values())
    assert after["bytes_out"] - before["bytes_out"] == total
    assert after["bytes_in"] == before["bytes_in"]
    assert after["memory"] == before["memory"]
    assert after["waits"] - before["waits"] <= 4, "one or two for each peer"


def test_only_what_came_is_written_back(pair, ours):
    modules = [Network(1).to(ours.first) for _ in range(2)]
    with torch.no_grad():
        modules[0].second.bias.fill_(3.0)
    states = [SharedState.from_module(each) for each in modules]
    ours.settle()
    before = ours.counts()
    infos = sync(pair, states)
    after = ours.counts()
    assert equal(*modules)
    assert infos[1].rx_bytes == 8 * 4
    assert after["bytes_in"] - before["bytes_in"] == 8 * 4


def test_what_the_callers_stream_makes_of_a_state_is_what_is_synced(pair, device):
    """Kernels are still queued when the sync begins."""
    tensors = [torch.ones(100_000, device=device.first) for _ in range(2)]
    states = [SharedState([TensorInfo.from_torch(each, "w")]) for each in tensors]
    stream = torch.Stream(device.first)

    def make():
        with stream:
            device.sleep(100)
            device.scale(tensors[0], 0, 5)
            pair[0].sync_shared_state(states[0])

    states[0].revision = 1
    device.settle()
    succeed([make, lambda: pair[1].sync_shared_state(states[1])])
    assert tensors[1].cpu().eq(5).all()


def test_strided_tensors_of_a_device_are_synced_by_their_elements(pair, device):
    tensors = [torch.arange(12.0).reshape(3, 4).to(device.first).t(), torch.zeros(4, 3)]
    states = [SharedState([TensorInfo.from_torch(each, "w")]) for each in tensors]
    sync(pair, states)
    assert torch.equal(tensors[0].cpu(), tensors[1])
    tensors[1] += 1
    sync(pair, states, (1, 2))
    assert torch.equal(tensors[0].cpu(), tensors[1])


def test_a_chunk_that_cannot_be_written_is_no_success(pair, ours):
    modules = [Network(1), Network(2).to(ours.first)]
    states = [SharedState.from_module(each) for each in modules]
    for state, revision in zip(states, (1, 0), strict=True):
        state.revision = revision
    ours.switch(fail_copies_in=1)
    told = together([lambda c=c, s=s: c.sync_shared_state(s) for c, s in zip(pair, states, strict=True)])
    assert not isinstance(told[0], Exception)
    # It was tried again, and what had come was not fetched again.
    assert not isinstance(told[1], Exception)
    assert equal(*modules)
    ours.switch(fail_copies_in=1_000_000)
    with torch.no_grad():
        modules[0].second.bias.fill_(3.0)
    states[0].revision += 1
    told = together([lambda c=c, s=s: c.sync_shared_state(s) for c, s in zip(pair, states, strict=True)])
    assert isinstance(told[1], SyncFailed)
    assert "'module.second.bias' cannot be written" in str(told[1])


def test_chunks_of_a_sync_that_was_given_up_are_on_the_device(device):
    """Each is written when it comes, not when all have: the sync ends after its first one, as it does by Ctrl-C."""
    count, part = 3 << 20, 1 << 20
    there, rig = torch.zeros(count, device=device.first), Rig(1)
    source = holding([Content("w", torch.ones(count).numpy(), DataType.FLOAT)])
    _, remote = state_tensor(there, "w")

    class First:
        """The tensor, until it has got one chunk."""

        nbytes, count, dtype = remote.nbytes, remote.count, remote.dtype

        def put(self, begin, content):
            remote.put(begin, content)
            pulling.abort()

    entry = Entry("w", DataType.FLOAT, count, False, remote)
    own = Holding([msgspec.structs.replace(entry, tensor=First())], take_manifest([entry]))
    end = End()
    pulling = Pulling(rig.attempt, own, goal(source), rig.near, end, STALL_S)
    rig.transfers.append(pulling)
    rig.serve(0, source)
    pulling.start()
    try:
        assert end.wait().cause == "aborted"
        assert there.cpu()[:part].eq(1).all()
        assert there.cpu()[part:].eq(0).all()
    finally:
        rig.close()


def test_prefetch_brings_the_state_to_the_device(device):
    source, target = Network(1).to(device.first), Network(2).to(device.second)
    with MasterNode("127.0.0.1:0") as master:
        pair = connect_two(master)
        states = [SharedState.from_module(each) for each in (source, Network(1))]
        sync(pair, states, (1, 1))
        newcomer = Communicator(address(master))
        info = newcomer.prefetch_shared_state(SharedState.from_module(target))
        assert info.rx_bytes > 5_000_000
        assert equal(source, target)
        for each in pair:
            each.close()


def test_optimizer_state_is_made_within_what_it_takes(ours):
    module = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(20)]).to(ours.first)
    optimizer = torch.optim.AdamW(module.parameters())
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append(1))
    gc.collect()
    ours.reset()
    before = ours.count("memory")
    make_state(optimizer)
    assert called == []
    made = ours.count("memory") - before
    assert 2 * before <= made <= 2 * before + 20 * 8 * KIB
    assert ours.count("memory_peak") - before - made <= 4 * 256 * KIB, "a few tensors of one parameter"
