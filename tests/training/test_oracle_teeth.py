"""The oracle notices: a changed rate, momentum, weight or place in the schedule fails it, in every mode."""

import ast
from pathlib import Path

import pytest

from pccl.training import settings
from pccl.training.meter import Meter
from pccl.training.rounds import Rounds
from pccl.training.rows import Table
from tests.training import oracle, test_oracle

MODES = {
    "plain": test_oracle.test_plain,
    "local": test_oracle.test_local_sgd,
    "overlapped": lambda crew: test_oracle.test_overlapped(crew, 2, 0.0),
    "auto": test_oracle.test_as_few_steps_of_overlap_as_hide_the_reduction,
    "streaming": lambda crew: test_oracle.test_streaming(crew, 5, 3),
    "delayed": test_oracle.test_delayed,
    "eager": lambda crew: test_oracle.test_eager(crew, None),
}
RATES, WEIGHTS, OFFSET = settings.Settings.rates, Table.weights, Rounds._offset
STEPS_TO_HIDE = Meter.steps_to_hide


def _rates(self, peers):
    rate, momentum = RATES(self, peers)
    return rate, momentum + 0.01


def _outer_rate(self, peers):
    rate, momentum = RATES(self, peers)
    return rate * 1.01, momentum


def _weights(self, weigh):
    first, *rest = WEIGHTS(self, weigh)
    return [first + 1 if first else 0, *rest]


def _offset(self, fragment):
    return max(1, OFFSET(self, fragment) - (1 if fragment == 0 else 0))


def test_the_oracle_has_nothing_of_what_it_judges():
    """Neither of the library nor of other tests, which import that."""
    tree = ast.parse(Path(oracle.__file__).read_text())
    plain = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    relative = [f"{'.' * node.level}{node.module}" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in plain + relative} == {"copy", "torch"}
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not called & {"__import__", "importlib", "eval", "exec"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(settings.Settings, "rates", _rates), (settings.Settings, "rates", _outer_rate), (Table, "weights", _weights)],
    ids=["momentum", "rate", "weights"],
)
def test_a_changed_step_is_noticed(crew, monkeypatch, mode, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        MODES[mode](crew)


def test_a_changed_delay_is_noticed(crew, monkeypatch):
    monkeypatch.setattr(Meter, "steps_to_hide", lambda self: STEPS_TO_HIDE(self) + 1)
    with pytest.raises(AssertionError):
        MODES["auto"](crew)


def test_a_changed_offset_is_noticed(crew, monkeypatch):
    monkeypatch.setattr(Rounds, "_offset", _offset)
    with pytest.raises(AssertionError):
        test_oracle.test_streaming(crew, 7, 2)
