"""One step that is not finite costs its peer one contribution, in every mode, and no more than that."""

import pytest
import torch

from pccl.training import DiLoCo
from tests.training import oracle
from tests.training.test_rounds import EVERY as SHORT
from tests.training.test_rounds import make, spoil

MODES = {
    "plain": {},
    "overlapped": {"overlap": 2},
    "streaming": {"fragments": 3},
    "streaming, overlapped": {"fragments": 3, "overlap": 1},
    "delayed": {"overlap": "round"},
    "eager": {"overlap": "round", "eager": True},
}
PEERS, EVERY, ROUNDS, SPOILED = 3, 6, 6, 8


class Judged(DiLoCo):
    """One that keeps which of its contributions were finite."""

    def _row(self, fragment, norm):
        row = super()._row(fragment, norm)
        vars(self).setdefault("finite", []).append(bool(row.finite))
        return row


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_a_step_that_is_not_finite_spoils_one_contribution(crew, options):
    """With AdamW, whose moments keep what is not finite."""
    models = [oracle.make_model() for _ in range(PEERS)]

    def act(number):
        model = models[number]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Judged(crew.address, model, optimizer, sync_every=EVERY, min_peers=PEERS, **options) as run:
            for step in range(ROUNDS * EVERY):
                if number == 2 and step == SPOILED:
                    spoil(model)
                oracle.inner_step(model, optimizer, number, step)
        moments = [each for state in optimizer.state.values() for each in state.values()]
        return run.finite, run.outer_digest(), [*model.parameters(), *moments]

    told = crew.together(PEERS, act)
    assert len({digest for _, digest, _ in told}) == 1
    assert [finite.count(False) for finite, _, _ in told] == [0, 0, 1]
    assert all(bool(torch.isfinite(each).all()) for _, _, held in told for each in held)


def test_the_third_time_is_an_error_whichever_fragment_is_not_finite(crew):
    """What is reset after it is finite when the other fragments are launched."""
    run, model, optimizer = make(crew, 0, fragments=3)
    rows = []

    def spoiled():
        with run:
            for step in range(5 * SHORT):
                if step % SHORT == 1:
                    spoil(model)
                oracle.inner_step(model, optimizer, 0, step)
                rows.append(bool(torch.isfinite(next(model.parameters())).all()))

    with pytest.raises(FloatingPointError, match="3 rounds in a row"):
        spoiled()
    assert (run.round, rows) == (2, [True] * 7)
