"""A shared state made of a model follows it: what is synced is what the model holds at that moment. On the CPU."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from pccl import DataType, SharedState, TensorInfo, UsageError  # noqa: E402
from pccl.api.shared_state import hashed  # noqa: E402
from pccl.training.state import make_state  # noqa: E402


def model(fill=1.0):
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        for each in made.parameters():
            each.fill_(fill)
    return made


def content(state):
    """What is synced, by name."""
    _, entries = hashed(state)
    return {entry.name: bytes(entry.tensor.part(0, entry.tensor.nbytes)) for entry in entries}


def as_bytes(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def expected(module):
    return {f"module.{name}": as_bytes(each) for name, each in module.state_dict().items()}


def move_all(module):
    for each in module.parameters():
        each.data = each.data * 2


def replace(module):
    module[0].weight = torch.nn.Parameter(torch.full((4, 3), 7.0))


def swap_part(module):
    module[0] = torch.nn.Linear(3, 4)


CHANGES = {
    "data": move_all,
    "parameter": replace,
    "part": swap_part,
    "assign": lambda module: module.load_state_dict(model(5.0).state_dict(), assign=True),
    "copy": lambda module: module.load_state_dict(model(6.0).state_dict()),
    "buffer": lambda module: setattr(module[1], "running_mean", torch.full((4,), 3.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_model_holds_is_what_is_synced(change):
    module = model()
    state = SharedState.from_module(module)
    before = content(state)
    assert before == expected(module)
    CHANGES[change](module)
    assert content(state) == expected(module)
    assert content(state) != before


def test_another_type_is_refused_by_name():
    module = model()
    state = SharedState.from_module(module)
    module.half()
    with pytest.raises(
        UsageError, match=r"'module\.0\.weight' was made of 12 x FLOAT, and its tensor holds 12 x FLOAT16"
    ):
        hashed(state)


@pytest.mark.parametrize("change", ["more", "less"])
def test_other_entries_are_refused_by_name(change):
    module = model()
    state = SharedState.from_module(module)
    if change == "more":
        module[0].register_buffer("scale", torch.ones(1))
    else:
        module[0].bias = None
    with pytest.raises(UsageError, match=r"'module\.0\.(scale' was not there before|bias' is not there any more)"):
        hashed(state)


def stepped(module, optimizer):
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return optimizer


def test_a_loaded_optimizer_is_followed():
    module = model()
    optimizer = torch.optim.AdamW(module.parameters())
    state = SharedState.from_module(module, optimizer)
    name = "optimizer.1.bias.exp_avg"
    assert content(state)[name] == bytes(16)
    other = model()
    optimizer.load_state_dict(stepped(other, torch.optim.AdamW(other.parameters())).state_dict())
    assert content(state)[name] == as_bytes(optimizer.state[module[1].bias]["exp_avg"]) != bytes(16)
    optimizer.load_state_dict(torch.optim.AdamW(other.parameters()).state_dict())
    assert content(state)[name] == bytes(16), "one from before its first step gets its state again"


def test_an_optimizer_of_parameters_that_were_replaced_is_named():
    module = model()
    state = SharedState.from_module(module, torch.optim.AdamW(module.parameters()))
    module.load_state_dict(model(5.0).state_dict(), assign=True)
    with pytest.raises(UsageError, match=r"'optimizer\.0\.weight\.exp_avg' is not there.*build the optimizer after"):
        hashed(state)


def test_entries_of_ones_own_stay_beside_those_of_a_model():
    module, counter = model(), torch.zeros(1)
    state = SharedState.from_module(module)
    state.tensors.append(TensorInfo.from_torch(counter, "rounds"))
    counter += 1
    assert content(state) == {**expected(module), "rounds": as_bytes(counter)}


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def names(*arguments):
    return [info.name for info in SharedState.from_module(*arguments).tensors]


def test_tied_weights_are_there_once_and_the_rest_as_in_state_dict():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 3)
            self.head = torch.nn.Linear(3, 5)
            self.head.weight = self.embedding.weight
            self.register_buffer("scratch", torch.ones(1), persistent=False)

    tied = Tied()
    assert names(tied) == ["module.embedding.weight", "module.head.bias"]
    state = SharedState.from_module(tied)
    tied.head.weight = torch.nn.Parameter(torch.ones(5, 3))
    with pytest.raises(UsageError, match=r"'module\.head\.weight' was not there before"):
        hashed(state)
    plain = model()
    assert names(plain) == [f"module.{name}" for name in plain.state_dict()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrappers_leave_no_trace_in_names():
    plain = model()
    wrapped = torch.nn.DataParallel(torch.compile(plain))
    optimizer = torch.optim.SGD(wrapped.parameters(), momentum=0.9)
    assert names(wrapped, optimizer) == names(plain, torch.optim.SGD(plain.parameters(), momentum=0.9))
    inside = model()
    inside[0] = torch.compile(inside[0])
    assert names(inside) == names(plain)


# ── any type of element ──────────────────────────────────────────────────────────────────────────────────────────────

OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_elements_of_any_type_may_be_in_a_state(dtype):
    module = model()
    module.register_buffer("table", torch.ones(6).to(dtype))
    state = SharedState.from_module(module)
    info = next(each for each in state.tensors if each.name == "module.table")
    assert (info.numel, info.dtype) == (6, str(dtype).removeprefix("torch."))
    assert content(state)["module.table"] == as_bytes(module.table)
    module.table = torch.ones(6, dtype=torch.uint8)
    with pytest.raises(UsageError, match=r"'module\.table' was made of 6 x '.*', and its tensor holds 6 x UINT8"):
        hashed(state)


def test_elements_of_numpy_too_but_no_objects():
    numpy = pytest.importorskip("numpy")
    mask = numpy.array([True, False])
    _, entries = hashed(SharedState([TensorInfo.from_numpy(mask, "mask")]))
    assert bytes(entries[0].tensor.part(0, 2)) == b"\1\0"
    with pytest.raises(UsageError, match="'things': its elements are not plain bytes"):
        TensorInfo.from_numpy(numpy.array([[], None], dtype=object), "things")
    mask.flags.writeable = False
    with pytest.raises(UsageError, match="'mask': this ndarray is read-only"):
        TensorInfo.from_numpy(mask, "mask")


def test_types_are_part_of_the_layout():
    def layout(tensor):
        return hashed(SharedState([TensorInfo.from_torch(tensor, "x")]))[0].layout

    kinds = [torch.zeros(8, dtype=torch.bool), torch.zeros(8, dtype=torch.uint8), torch.zeros(1, dtype=torch.complex64)]
    kinds += [torch.zeros(1, dtype=torch.float64), torch.zeros(8, dtype=torch.float8_e5m2)]
    found = [layout(each) for each in kinds]
    assert all(one != other for one, other in itertools.combinations(found, 2))
    assert DataType.UINT8 is TensorInfo.from_torch(kinds[1], "x").dtype


# ── the optimizer's state ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "ASGD", "Rprop", "Adamax"])
def test_state_is_made_without_a_trace(kind):
    module = model(-0.0)
    twin = model(-0.0)
    optimizer, fresh = (getattr(torch.optim, kind)(each.parameters(), lr=0.1) for each in (module, twin))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    before = [as_bytes(each) for each in module.parameters()]
    make_state(optimizer)
    assert called == []
    assert [as_bytes(each) for each in module.parameters()] == before
    assert all(each.grad is None for each in module.parameters())
    assert all(optimizer.state[each] for each in module.parameters())
    stepped(module, optimizer)
    stepped(twin, fresh)
    scheduler.step()
    assert called == ["before", "after"]
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs), "a step after it is the first step"


def test_state_is_made_for_one_parameter_after_the_other():
    parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(5)]
    most = []

    class Watched(torch.optim.AdamW):
        def step(self, closure=None):
            most.append(sum(each.grad is not None for each in parameters))
            return super().step(closure)

    optimizer = Watched(parameters)
    optimizer.register_step_post_hook(lambda *_: pytest.fail("no step was taken"))
    make_state(optimizer)
    assert most == [1] * 5
    assert len(optimizer.param_groups[0]["params"]) == 5
