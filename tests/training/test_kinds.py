"""Models and optimizers out of the ordinary: they train, or a sentence says why they cannot."""

import threading

import pytest
import torch
from torch import nn

from pccl import SharedState, UsageError
from pccl.api.shared_state import hashed
from pccl.training import DataParallel, DiLoCo
from tests.patience import HANG_S

KINDS = [DiLoCo, DataParallel]


def options_of(kind, **options):
    return {"sync_every": 2, **options} if kind is DiLoCo else options


def train(crew, kind, build, optimizer_of, shape, steps=4, **options):
    """Two peers, each with data of its own; of both the outer digest and the model."""
    models = []
    for _ in range(2):
        torch.manual_seed(2)
        models.append(build())

    def act(number):
        model, chance = models[number], torch.Generator().manual_seed(number)
        optimizer = optimizer_of(model)
        dtype = next(model.parameters()).dtype
        with kind(crew.address, model, optimizer, min_peers=2, **options_of(kind, **options)) as run:
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.randn(shape, generator=chance).to(dtype)).square().mean().backward()
                optimizer.step()
            return run.outer_digest()

    first, second = crew.together(2, act)
    assert first == second
    for mine, theirs in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(mine, theirs)
    return models[0]


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def images(memory_format=torch.channels_last):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)).to(memory_format=memory_format)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_whose_elements_lie_in_another_order_trains(crew, kind):
    model = train(crew, kind, images, adam, (2, 3, 8, 8))
    assert not model[0].weight.is_contiguous()


def test_another_order_is_what_is_shared_and_peers_that_differ_in_it_are_refused():
    model = images()
    names, entries = zip(
        *((each.name, each) for each in SharedState.from_module(model, adam(model)).tensors), strict=True
    )
    assert "module.0.weight with axes 0,2,3,1" in names
    assert "optimizer.0.weight.exp_avg with axes 0,2,3,1" in names
    assert entries[0].numel == model[0].weight.numel()
    _, shown = hashed(SharedState.from_module(model))
    found = {each.name: each.tensor for each in shown}["module.0.weight with axes 0,2,3,1"]
    expected = model[0].weight.detach().permute(0, 2, 3, 1).contiguous()
    assert bytes(found.part(0, found.nbytes)) == expected.numpy().tobytes()


def test_peers_whose_models_lie_in_different_orders_are_refused_by_name(crew):
    models = [images(), images(torch.contiguous_format)]
    joined, done = threading.Event(), threading.Event()

    def act(number):
        model = models[number]
        run = DiLoCo(crew.address, model, adam(model), sync_every=1)
        if number:
            assert joined.wait(HANG_S)
            with pytest.raises(UsageError, match="with axes 0,2,3,1"), run:
                pass
            done.set()
            return
        with run:
            joined.set()
            while not done.is_set():
                run.step_done()

    crew.together(2, act)


class Odd(nn.Module):
    """With a scalar, and with a parameter that has no element."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.scale, self.none = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(0))

    def forward(self, x):
        return self.layer(x) * self.scale + self.none.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_and_empty_parameters_train(crew, kind):
    train(crew, kind, Odd, adam, (4, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_float64_trains(crew, kind):
    """What is sent of it is rounded to float32: that is no change of a gradient."""
    train(crew, kind, lambda: nn.Linear(6, 3).double(), adam, (4, 6))


def muon_and_adam(model):
    """As one, for the loop."""
    matrices = [each for each in model.parameters() if each.ndim == 2]
    return torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW([model[0].bias, model[1].bias], lr=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_two_optimizers_of_different_kinds_train(crew, kind):
    models = []
    for _ in range(2):
        torch.manual_seed(2)
        models.append(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1)))

    def act(number):
        model, optimizers = models[number], muon_and_adam(models[number])
        with kind(crew.address, model, optimizers, min_peers=2, **options_of(kind)) as run:
            for step in range(4):
                model(torch.full((2, 6), 1.0 + number + step)).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            return run.outer_digest(), run.step

    assert len(set(crew.together(2, act))) == 1
    assert all(torch.equal(*each) for each in zip(*(model.parameters() for model in models), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_complex_parameters_are_refused(kind):
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(UsageError, match=r"'weight' must be real, got torch\.complex64; hold torch\.view_as_real"):
        kind("127.0.0.1:1", model, adam(model))


def test_sparse_gradients_are_for_rounds_and_refused_in_every_step(crew):
    def run(kind):
        model = nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with kind(crew.address, model, optimizer, **options_of(kind)) as joined:
            for _ in range(2):
                model(torch.tensor([1, 4])).square().mean().backward()
                optimizer.step()
            return joined.round

    assert run(DiLoCo) == 1
    with pytest.raises(UsageError, match=r"gradient of 'weight' must be dense.*sparse=False"):
        run(DataParallel)


def test_an_optimizer_whose_state_only_a_step_makes_is_named_and_may_begin_fresh(crew):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    with pytest.raises(UsageError, match=r'LBFGS: its state must be there.*make a step before, or pass join="fresh"'):
        DiLoCo(crew.address, model, optimizer, sync_every=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    with DiLoCo(crew.address, model, optimizer, sync_every=2, join="fresh") as run:
        for _ in range(2):
            optimizer.step(closure)
        assert run.round == 1


@pytest.mark.parametrize("several", [False, True])
def test_a_scheduler_that_follows_no_step_is_refused(several):
    model = nn.Linear(3, 1)
    optimizer = adam(model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(UsageError, match="follow from the step alone, got ReduceLROnPlateau"):
        DiLoCo("127.0.0.1:1", model, optimizer, scheduler=[plateau] if several else plateau)


def two_layers(frozen):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].requires_grad_(not frozen)
    return model


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_frozen_when_the_run_was_made_must_stay_so(crew, kind):
    """Trained all the same it would be another one on each peer, in no delta and no gradient."""
    model = two_layers(frozen=True)
    optimizer = adam(model)
    with kind(crew.address, model, optimizer, **options_of(kind)):
        step(model, optimizer)
        model[0].requires_grad_(True)
        with pytest.raises(UsageError, match=r"'0\.weight' was frozen when the run was made"):
            step(model, optimizer)


def test_what_is_frozen_later_keeps_its_place(crew):
    """Loops that train two models by turns freeze the other one meanwhile."""

    def act(number):
        model = two_layers(frozen=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with DiLoCo(crew.address, model, optimizer, sync_every=2, min_peers=2) as run:
            model[0].requires_grad_(False)
            names = [each.name for each in run._contents.entries(run._books)]
            for _ in range(2):
                step(model, optimizer)
            return names, run.outer_digest()

    first, second = crew.together(2, act)
    assert first == second
    assert "outer.0.weight" in first[0]
    assert not any(each.startswith("frozen.") for each in first[0])


@pytest.mark.filterwarnings("ignore")  # of torch, while it imports its compiler
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_step_counts_like_any_other(crew, kind):
    """Its hooks are not compiled with it."""
    model = nn.Linear(3, 1)
    optimizer = adam(model)
    compiled = torch.compile(optimizer.step, backend="eager")
    with kind(crew.address, model, optimizer, **options_of(kind)) as run:
        for made in range(4):
            assert run.step == made
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().mean().backward()
            compiled()
        assert run.round == (2 if kind is DiLoCo else 4)


def test_layers_between_which_others_have_no_parameters_are_spread_over_fragments():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh())
    run = DiLoCo("127.0.0.1:1", model, adam(model), sync_every=2, fragments=2)
    assert [sorted({name[0] for name in each.names}) for each in run._contents.fragments] == [["0", "4"], ["2"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda model: (None, model, adam(model)), "the first argument must be the master's host:port or a "),
        (lambda model: ("127.0.0.1:1", "model", adam(model)), r"model must be a torch\.nn\.Module, got 'model'"),
        (
            lambda model: ("127.0.0.1:1", model, None),
            r"optimizer must be one of torch\.optim, or a list of them, got None",
        ),
        (
            lambda model: ("127.0.0.1:1", model, []),
            r"optimizer must be one of torch\.optim, or a list of them, got None",
        ),
        (lambda model: ("127.0.0.1:1", model, adam(nn.Linear(3, 1))), "optimizer must step parameters of model"),
    ],
)
def test_wrong_arguments_are_named(arguments, sentence):
    with pytest.raises(UsageError, match=sentence):
        DiLoCo(*arguments(nn.Linear(3, 1)))
