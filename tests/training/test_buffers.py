"""Buffers that are not finite at one peer are left out of the mean, and go on at no other."""

import math

import pytest
import torch
from torch import nn

from pccl.training import DiLoCo

INF, NAN = math.inf, math.nan
PEERS = 3


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("scale", torch.zeros(()))


def after_a_round(crew, means, tokens=(1, 1, 1)):
    """What each peer holds after a round, in which these were the buffers."""
    models = [WithBuffers() for _ in range(PEERS)]

    def act(number):
        model = models[number]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with DiLoCo(crew.address, model, optimizer, sync_every=1, min_peers=PEERS) as run:
            model.mean.copy_(torch.tensor(means[number]))
            model.seen.fill_(number)
            model.scale.fill_(1.0 + number)
            run.count_tokens(tokens[number])
            model.layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return model.mean.tolist(), int(model.seen), float(model.scale)

    return crew.together(PEERS, act)


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_the_mean_is_that_of_the_peers_whose_buffer_is_finite(crew, bad):
    """The whole buffer is left out: its other values are of the same accident. Other buffers of that peer count."""
    told = after_a_round(crew, [[1.0, 2.0], [bad, 100.0], [4.0, 8.0]], (2, 5, 1))
    assert told == [([2.0, 4.0], 2, 1.875)] * PEERS


def test_where_none_is_finite_each_keeps_its_own(crew):
    """A mask of minus infinity is such a buffer, and the same on all peers."""
    means = [[-INF, 0.0], [-INF, 1.0], [0.0, -INF]]
    assert after_a_round(crew, means) == [(means[number], 2, 2.0) for number in range(PEERS)]
