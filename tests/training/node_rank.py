"""A rank of a node that trains a sharded model, as a process: what it is told by arguments, what it does by lines of
JSON. What the ranks of all nodes must end with is computed by `oracle` from the same data."""

import datetime
import errno
import json
import logging
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pccl import Communicator, UsageError
from pccl.training import DiLoCo
from pccl.training.fsdp import checkpoint, node
from pccl.training.fsdp import group as node_group
from pccl.training.group import Group
from pccl.training.mesh import ElasticDeviceMesh
from tests.training import oracle
from tests.training.trainer import Lines


class Odd(nn.Module):
    """With rows that do not divide by the ranks, tied weights, a frozen parameter, one of a single element, buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Linear(6, 13)
        self.frozen = nn.Linear(13, 13)
        self.frozen.requires_grad_(False)
        self.one, self.two = nn.Linear(13, 13, bias=False), nn.Linear(13, 13)
        self.two.weight = self.one.weight
        self.head = nn.Linear(13, 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.seen += len(x)
        x = torch.tanh(self.frozen(torch.tanh(self.embed(x))))
        return self.head(torch.tanh(self.two(self.one(x)))) * self.scale


MODELS = {"plain": oracle.make_model, "odd": Odd}


def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def sharded(told):
    """The model, over the ranks of this node."""
    ranks, copies = told["ranks"], told.get("copies", 1)
    shape, names = ((ranks,), ("shard",)) if copies == 1 else ((copies, ranks // copies), ("copy", "shard"))
    if told.get("elastic"):
        elastic = ElasticDeviceMesh(shape=shape)
        mesh = elastic.mesh
        say("mesh", shape=list(mesh.shape), names=mesh.mesh_dim_names, local=elastic.local_pg.size())
    else:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = MODELS[told.get("model", "plain")]()
    if told.get("seed") is not None:
        torch.manual_seed(told["seed"])
        for each in model.parameters():
            nn.init.uniform_(each, -0.3, 0.3)
    if told.get("alone"):
        return model
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if told.get("mixed") else MixedPrecisionPolicy()
    for layer in list(model.children()):
        if isinstance(layer, nn.Linear) and told.get("model") != "odd":
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def whole(run):
    """All outer parameters, the same on all ranks of all nodes. All ranks of a node ask together."""
    return {name: each.full_tensor() for name, each in run.sharded_outer_parameters().items()}


def be_killed(commits):
    """When so many collectives are committed in this rank's group, before its node has compared them."""
    left, compare = iter(range(commits)), node_group.NodeGroup._tell

    def tell(group, own):
        if own.nodes and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return compare(group, own)

    node_group.NodeGroup._tell = tell


def be_late(launches):
    """Launch no more than so many reductions, and stay."""
    left, launch_part = iter(range(launches)), node_group.NodeGroup.launch_part

    def launch(group, *rest):
        if next(left, None) is None:
            say("late")
            threading.Event().wait()
        return launch_part(group, *rest)

    node_group.NodeGroup.launch_part = launch


def be_unfetched():
    """Connect without what others could give and compare before: those that have it were lost meanwhile, say."""
    Group._prefetch = lambda *_: None


def be_counting():
    """Say how much came before this rank was let in."""
    prefetch = Communicator.prefetch_shared_state

    def count(communicator, *rest):
        info = prefetch(communicator, *rest)
        say("prefetched", bytes=info.rx_bytes)
        return info

    Communicator.prefetch_shared_state = count


def be_missing():
    """Never connect, though the node's other ranks do."""

    def connect(communicator, *rest):
        say("missing")
        threading.Event().wait()

    Communicator.connect = connect


def be_stopped(where, calls):
    """Stand still, as a machine that is suspended does: after so many steps, before the next one ("step") or before
    this node's ranks tell each other what it brings ("exchange")."""
    owner, name = PLACES[where]
    left, act = iter(range(calls)), getattr(owner, name)

    def stop(*rest):
        if next(left, None) is None and next(once, None) is not None:
            say("stops")
            os.kill(os.getpid(), signal.SIGSTOP)
        return act(*rest)

    once = iter(range(1))
    setattr(owner, name, stop)


def be_hung(calls):
    """After so many steps, never end the next one."""
    left, act = iter(range(calls)), PLACES["step"][0].step

    def hang(*rest):
        if next(left, None) is None:
            say("hangs")
            threading.Event().wait()
        return act(*rest)

    PLACES["step"][0].step = hang


def be_slow(seconds):
    """So much longer a step."""
    act, pause = PLACES["step"][0].step, threading.Event()

    def wait(*rest):
        pause.wait(seconds)
        return act(*rest)

    PLACES["step"][0].step = wait


def be_unaware():
    """Never learn that others wait."""
    Group.awaited_s = lambda group: 0.0


def be_timed(step_s, reduced_s):
    """Tell the node that a step lasts so long here, and a reduction."""
    tell = node_group.NodeGroup.together

    def together(group, row):
        return tell(group, row._replace(computed_s=row.steps * step_s, reduced_s=reduced_s))

    node_group.NodeGroup.together = together


def be_full(writes):
    """After so many files of this rank's own there is no space for more."""
    left, write = iter(range(writes)), checkpoint.write

    def fail(*rest):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*rest)

    checkpoint.write = fail


PLACES = {"step": (sys.modules[__name__], "step"), "exchange": (node_group.NodeGroup, "together")}

FATES = {"killed": be_killed, "late": be_late, "missing": be_missing, "stopped": be_stopped, "hung": be_hung}
FATES |= {"full": be_full, "slow": be_slow, "timed": be_timed, "unaware": be_unaware}
FATES |= {"unfetched": be_unfetched, "counting": be_counting}


def train(told, rank):
    model = sharded(told)
    optimizer = (
        torch.optim.AdamW(model.parameters())
        if told.get("adam")
        else oracle.make_optimizer(model, told.get("lr", oracle.LR))
    )
    for fate, details in told.get("fates", {}).get(str(rank), {}).items():
        FATES[fate](*details)
    pause, stop = threading.Event(), threading.Event()
    threading.Thread(target=lambda: sys.stdin.readline() and stop.set(), daemon=True).start()
    run = DiLoCo(told["address"], model, optimizer, **told.get("options", {}))
    if told.get("checkpoint"):
        run.checkpoint(told["checkpoint"], every=told.get("every", 1))
        say("resumed", found=run.resume(told["checkpoint"]), round=run.round)
    before = digest_of(run)
    say("ready")
    with run:
        say("joined", round=run.round, peer=run.communicator.peer_id)
        say("begins", digest=digest_of(run), before=before)
        elastic = ElasticDeviceMesh() if told.get("elastic") else None
        if elastic is not None:
            elastic.follow(run)
        while run.round < told["rounds"] and not stopped(stop):
            pause.wait(told.get("step_s", 0.0))
            at = run.metrics().get("merged_round")
            step(told, rank, run, model, optimizer)
            if run.metrics().get("merged_round") != at:
                tell_round(told, run)
                if elastic is not None and elastic.maybe_reinit_global_pg(admit_joiners=True):
                    size, info = elastic.global_pg.size(), elastic.world_info._asdict()
                    say("changed", joined=elastic.joined, left=elastic.left, size=size, info=info)
        say("starts", model=whole_model(model) if told.get("outer") else None)
        if told.get("export"):
            run.export_safetensors(told["export"])
    tell_end(told, run, model, optimizer)


def whole_model(model):
    return {name: each.detach().full_tensor().tolist() for name, each in model.named_parameters()}


def step(told, rank, run, model, optimizer):
    x, y = oracle.data(told["number"] * told["ranks"] + rank, run.step)
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    if told.get("clip"):
        nn.utils.clip_grad_norm_(model.parameters(), told["clip"])
    if told.get("spoiled") == [run.step, rank]:
        with torch.no_grad():
            next(model.parameters()).to_local()[0] = float("nan")
    optimizer.step()


def stopped(stop):
    """On all ranks of this node after the same step."""
    told = torch.tensor([int(stop.is_set())])
    dist.all_reduce(told)
    return bool(told)


def digest_of(run):
    found = xxhash.xxh3_128()
    for _, each in sorted(whole(run).items()):
        found.update(each.numpy().tobytes())
    return found.hexdigest()


def tell_round(told, run):
    if told.get("checkpoint"):
        run._saver.finish()  # Else rounds that end meanwhile would be left out.
    digest = digest_of(run) if told.get("whole") else run.outer_digest()
    facts = {key: run.metrics()[key] for key in ("peers", "seconds", "steps")}
    say("round", round=run.metrics()["merged_round"], digest=digest, **facts)


def tell_end(told, run, model, optimizer):
    facts = {
        "outer": {name: each.tolist() for name, each in whole(run).items()},
        "model": whole_model(model),
        "buffers": {name: each.tolist() for name, each in model.named_buffers()},
        "state": [each["exp_avg"].full_tensor().tolist() for each in optimizer.state.values() if "exp_avg" in each],
    }
    say("done", round=run.round, **(facts if told.get("outer") else {}))


def main():
    told = json.loads(sys.argv[1])
    rank = told["rank"]
    torch.set_num_threads(1)
    logging.getLogger("pccl.training").addHandler(Lines())
    logging.getLogger("pccl.training").setLevel(logging.INFO)
    node.GRACE_S = told.get("grace_s", node.GRACE_S)
    limit = datetime.timedelta(seconds=told.get("timeout_s", 1800))
    store = f"file://{told['store']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=told["ranks"], timeout=limit)
    try:
        train(told, rank)
    except UsageError as error:
        say("refused", text=str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
