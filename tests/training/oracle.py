"""What N peers must end with, computed by one process from the papers' formulas: imports nothing of `pccl.training`.

Every peer's data are a function of its number and step, its model a small network, its inner optimizer plain SGD with
momentum or AdamW; outer parameters are float64 here, so that the library's float32 is compared with something finer.
"""

import copy

import torch
from torch import nn

LR = 0.05
STEADY = 3e-4
"""An inner rate for loops that last until something happens elsewhere. With the default one the outer steps of this toy
diverge after some hundred rounds, which a slow join is enough for."""


def make_model(dtype=torch.float32):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    return model.to(dtype)


def make_optimizer(model, lr=LR):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def data(peer, step, dtype=torch.float32):
    """A batch that another peer or step does not have."""
    x = torch.sin(torch.arange(8 * 6, dtype=torch.float64).reshape(8, 6) * (1.3 + peer) + 0.7 * step)
    y = torch.cos(x.sum(1, keepdim=True) + peer)
    return x.to(dtype), y.to(dtype)


def inner_step(model, optimizer, peer, step):
    x, y = data(peer, step, next(model.parameters()).dtype)
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


class Replica:
    """One of the N, in this process."""

    def __init__(self, number):
        self.number, self.model, self.step = number, make_model(), 0
        self.optimizer = make_optimizer(self.model)
        self.launched = {}
        self.own = None

    def go(self):
        inner_step(self.model, self.optimizer, self.number, self.step)
        self.step += 1

    def flat(self):
        return {name: p.detach().double().clone() for name, p in self.model.named_parameters()}

    @torch.no_grad()
    def set(self, values):
        for name, parameter in self.model.named_parameters():
            if name in values:
                parameter.copy_(values[name])


class Outer:
    """θ and v, Nesterov's way."""

    def __init__(self, values, rate, momentum):
        self.theta = copy.deepcopy(values)
        self.v = {name: torch.zeros_like(each) for name, each in values.items()}
        self.rate, self.momentum = rate, momentum

    def step(self, mean):
        for name, delta in mean.items():
            self.v[name] = self.momentum * self.v[name] + delta
            self.theta[name] = self.theta[name] - self.rate * (delta + self.momentum * self.v[name])


def mean_of(deltas, weights):
    total = sum(weights)
    return {name: sum(w * d[name] for w, d in zip(weights, deltas, strict=True)) / total for name in deltas[0]}


def train(peers, rounds, every, rate, momentum, weights=None, quotas=None):
    """Plain DiLoCo. `quotas`: steps of each peer, in each round; they weigh where no weights are given."""
    replicas = [Replica(number) for number in range(peers)]
    outer = Outer(replicas[0].flat(), rate, momentum)
    for number in range(rounds):
        deltas = []
        for replica in replicas:
            replica.step = number * every
            for _ in range(quotas[number][replica.number] if quotas else every):
                replica.go()
            here = replica.flat()
            deltas.append({name: outer.theta[name] - here[name] for name in here})
        outer.step(mean_of(deltas, weights or (quotas[number] if quotas else [1] * peers)))
        for replica in replicas:
            replica.set(outer.theta)
    return outer, replicas


def train_overlapped(peers, rounds, every, rate, momentum, delays, mix):
    """The result of each round is merged so many steps after its launch; the last one when training ends."""
    replicas = [Replica(number) for number in range(peers)]
    outer = Outer(replicas[0].flat(), rate, momentum)
    flying = None
    for step in range(1, rounds * every + 1):
        for replica in replicas:
            replica.go()
        if flying is not None and step == flying[0]:
            merge(outer, replicas, flying[1], mix)
            flying = None
        if step % every == 0:
            deltas = [{name: outer.theta[name] - each for name, each in replica.flat().items()} for replica in replicas]
            flying = (step + delays[step // every - 1], mean_of(deltas, [1] * peers))
            if flying[0] == step:
                merge(outer, replicas, flying[1], mix)
                flying = None
    if flying is not None:
        merge(outer, replicas, flying[1], mix)
    return outer, replicas


def merge(outer, replicas, mean, mix):
    outer.step(mean)
    for replica in replicas:
        here = replica.flat()
        replica.set({name: mix * here[name] + (1 - mix) * outer.theta[name] for name in mean})


def train_streaming(peers, rounds, every, rate, momentum, delay, mix, parts):
    """Fragment p of P is launched after steps (p + 1)·H/P of each round, and merged `delay` steps later."""
    replicas = [Replica(number) for number in range(peers)]
    outer = Outer(replicas[0].flat(), rate, momentum)
    offsets = [(p + 1) * every // len(parts) for p in range(len(parts))]
    flying = []
    for step in range(1, rounds * every + 1):
        for replica in replicas:
            replica.go()
        for flight in [each for each in flying if each[0] + delay == step]:
            merge(outer, replicas, flight[1], mix)
            flying.remove(flight)
        for part, offset in zip(parts, offsets, strict=True):
            if (step - offset) % every == 0 and step >= offset:
                deltas = [{name: outer.theta[name] - replica.flat()[name] for name in part} for replica in replicas]
                flying.append((step, mean_of(deltas, [1] * peers)))
    for flight in flying:
        merge(outer, replicas, flight[1], mix)
    return outer, replicas


def train_delayed(peers, rounds, every, rate, momentum):
    """Round t applies the mean of round t − 1; every model then starts from the same outer parameters."""
    replicas = [Replica(number) for number in range(peers)]
    outer = Outer(replicas[0].flat(), rate, momentum)
    last = None
    for _ in range(rounds):
        deltas = []
        for replica in replicas:
            for _ in range(every):
                replica.go()
            here = replica.flat()
            deltas.append({name: outer.theta[name] - here[name] for name in here})
        if last is not None:
            outer.step(last)
        last = mean_of(deltas, [1] * peers)
        for replica in replicas:
            replica.set(outer.theta)
    outer.step(last)
    for replica in replicas:
        replica.set(outer.theta)
    return outer, replicas


def train_eager(peers, rounds, every, rate, momentum, weights=None):
    """Kale and others (arXiv 2502.12996) as they write it: every replica has outer parameters of its own, stepped with
    the stale mean in which its own stale delta is replaced by its fresh one. Gives those, before the last merge. Before
    there was a sum nobody knows its share of it: what models first go on from takes an equal one."""
    weights = weights or [1] * peers
    replicas = [Replica(number) for number in range(peers)]
    outers = [Outer(replica.flat(), rate, momentum) for replica in replicas]
    starts = [replica.flat() for replica in replicas]
    last = [{name: torch.zeros_like(each) for name, each in starts[0].items()} for _ in replicas]
    for number in range(rounds):
        deltas = []
        for replica, start in zip(replicas, starts, strict=True):
            for _ in range(every):
                replica.go()
            here = replica.flat()
            deltas.append({name: start[name] - here[name] for name in here})
        mean, starts = mean_of(last, weights), []
        for replica, outer, fresh, stale in zip(replicas, outers, deltas, last, strict=True):
            share, first = weights[replica.number] / sum(weights), copy.deepcopy(outer)
            outer.step({name: mean[name] + (fresh[name] - stale[name]) * share for name in mean})
            first.step({name: fresh[name] / peers for name in mean})
            starts.append(outer.theta if number else first.theta)
            replica.set(starts[-1])
        last = deltas
    return outers, replicas


def train_parallel(peers, steps, weights=None, passes=1, lr=LR):
    """Each step with the weighted mean of all peers' gradients; with several passes, of their sum."""
    model = make_model()
    optimizer = make_optimizer(model, lr)
    for step in range(steps):
        gradients = []
        for peer in range(peers):
            model.zero_grad()
            for number in range(passes):
                x, y = data(peer, step * passes + number)
                ((model(x) - y) ** 2).mean().backward()
            gradients.append({name: each.grad.double().clone() for name, each in model.named_parameters()})
        mean = mean_of(gradients, weights or [1] * peers)
        for name, parameter in model.named_parameters():
            parameter.grad = mean[name].to(parameter.dtype)
        optimizer.step()
    return {name: each.detach().double() for name, each in model.named_parameters()}
