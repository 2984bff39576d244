"""The ranks of this node, one of which this process is: those that hold one model together.

Owns the small exchanges between them, each with a bound, and what their failure means. They use a process group of
their own, over gloo, so that they never meet what the model sends. Must not know rounds, rows or the master.
"""

import ctypes
import datetime
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from pccl import PCCLError, UsageError

log = logging.getLogger("pccl.training")

ROOM = 1024
"""Bytes that an exchange has in its first message; all rows fit, and what does not needs a second one."""

TIMEOUT_S = 1800.0
"""Of an exchange: torch's own for collectives over gloo. One rank may wait for a long reduction over the internet while
another has finished; a rank that died is noticed at once, by its connections."""

HOST_MAX = 31
"""Characters of the machine's name in that of its party, which has room for 48 and ends with a number of 62 bits: pods
and machines of clouds have longer ones."""

GRACE_S = 10.0
"""For ranks whose peer was put out of the run: so much later than the first of them each has learned of it."""

PAUSE_S = 0.0002
"""Between two looks at an exchange, which takes about as long; longer as it goes on, up to ten milliseconds."""


class NodeLost(PCCLError):
    """A rank of this node is gone or hangs, so the others, which hold parts of the same model, cannot go on.

    Remedy: end the process. torchrun starts the node again, and it joins the run as a newcomer."""


class Node:
    """All ranks of the mesh over which a model is sharded."""

    def __init__(self, mesh: DeviceMesh, placements: Sequence[Any]) -> None:
        self.mesh = mesh
        self.ranks = [int(each) for each in mesh.mesh.flatten()]
        self.place = self.ranks.index(dist.get_rank())
        """Of this process in the mesh, by which it finds its counterparts on other nodes."""
        self.number = 0
        """Of the node, for as long as it is in the run: the same on its ranks, and on no other node."""
        self._gone: Callable[[], bool] = lambda: False
        self.lost = False
        """A rank hangs: exchanges that are under way with it do not end."""
        self.group = self._group_of(self.ranks)
        """Of the exchanges."""
        self.host_mesh = DeviceMesh.from_group(
            mesh.get_all_groups(), "cpu", mesh=mesh.mesh, mesh_dim_names=mesh.mesh_dim_names or _names(mesh)
        )
        """The same mesh, for tensors on the host, wherever the model lies."""
        if self.place == 0 and (warning := stale_store()):
            log.warning("%s", warning)
        self._copies = self._copies_of(placements)
        """Ranks that hold the same shards, this one among them."""
        self._copying = self._group_of(self._copies) if len(self._copies) > 1 else None

    @staticmethod
    def _group_of(ranks: Sequence[int]) -> Any:
        """It is never destroyed: that would wait for its exchanges, so a process could not end when one of them does
        not. Nothing of torch's gives up a collective over gloo, but for its timeout."""
        limit = datetime.timedelta(seconds=TIMEOUT_S)
        made = dist.new_group(list(ranks), timeout=limit, backend="gloo", use_local_synchronization=True)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        return made

    def _copies_of(self, placements: Sequence[Any]) -> list[int]:
        here, ranks = self.mesh.get_coordinate(), self.mesh.mesh
        assert here is not None, "this process is in the mesh"
        for dim, placement in enumerate(placements):
            ranks = ranks if isinstance(placement, Replicate) else ranks.narrow(dim, here[dim], 1)
        return [int(each) for each in ranks.flatten()]

    def another_group(self) -> Any:
        """Over the same ranks, for a thread of its own. All ranks make it."""
        return self._group_of(self.ranks)

    @property
    def size(self) -> int:
        """Ranks of the node."""
        return len(self.ranks)

    @property
    def shape(self) -> str:
        """Of the mesh, in words that all nodes must have alike."""
        return "x".join(map(str, self.mesh.mesh.shape))

    @property
    def copy(self) -> int:
        """Which of the ranks with the same shards this is."""
        return self._copies.index(dist.get_rank())

    @property
    def copies(self) -> int:
        """Ranks with the same shards."""
        return len(self._copies)

    @property
    def party(self) -> str:
        """The node's name in the run."""
        return f"{socket.gethostname()[:HOST_MAX]}-{self.number:x}"

    def begin(self) -> None:
        """Draw a number for another time in the run."""
        drawn = self.exchange(secrets.randbits(62).to_bytes(8, "big"))
        self.number = int.from_bytes(drawn[0], "big") | 1
        self._gone = lambda: False

    def watch(self, gone: Callable[[], bool]) -> None:
        """From now on an exchange is given up some time after this peer was put out of the run."""
        self._gone = gone

    # ── exchanges ────────────────────────────────────────────────────────────────────────────────────────────────────

    def exchange(self, own: bytes) -> list[bytes]:
        """What each rank gives, by their places. All ranks call it; raises `NodeLost` if one cannot."""
        buffer = torch.zeros(8 + ROOM, dtype=torch.uint8)
        _fill(buffer, len(own).to_bytes(8, "big") + own[:ROOM])
        firsts = self._gather(buffer, self.group)
        lengths = [int.from_bytes(bytes(each[:8].tolist()), "big") for each in firsts]
        found = [bytes(each[8 : 8 + min(length, ROOM)].tolist()) for each, length in zip(firsts, lengths, strict=True)]
        if (most := max(lengths)) <= ROOM:
            return found
        rest = torch.zeros(most - ROOM, dtype=torch.uint8)
        _fill(rest, own[ROOM:])
        seconds = self._gather(rest, self.group)
        ends = (bytes(each[: max(0, length - ROOM)].tolist()) for each, length in zip(seconds, lengths, strict=True))
        return [begin + end for begin, end in zip(found, ends, strict=True)]

    def gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Tensors on the host, as long on all ranks."""
        return self._gather(own, self.group)

    def own_part(self, values: torch.Tensor) -> torch.Tensor:
        """Of what several ranks hold alike, the part that is this one's to send: equally long on all of them, but for
        the last."""
        begin = min(len(values), self.copy * self._part_length(values))
        return values[begin : begin + self._part_length(values)]

    def _part_length(self, values: torch.Tensor) -> int:
        return -(-len(values) // self.copies)

    def join_parts(self, values: torch.Tensor) -> None:
        """The way back: each rank has brought its own part up to date."""
        if self._copying is None or not len(values):
            return
        own = torch.zeros(self._part_length(values))
        part = self.own_part(values)
        own[: len(part)] = part
        values.copy_(torch.cat(self._gather(own, self._copying))[: len(values)])

    def equalise(self, tensors: Sequence[torch.Tensor]) -> None:
        """Of ranks that hold the same shards, all get what the first has."""
        if self._copying is None:
            return
        for each in tensors:
            if each.numel():
                here = each.detach().to("cpu").contiguous()
                self._finish(dist.broadcast(here, self._copies[0], group=self._copying, async_op=True))
                each.detach().copy_(here)

    def _gather(self, own: torch.Tensor, group: Any) -> list[torch.Tensor]:
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        try:
            work = dist.all_gather(found, own, group=group, async_op=True)
        except RuntimeError as error:
            raise self._lost(str(error)) from error
        self._finish(work)
        return found

    def _finish(self, work: Any) -> None:
        """Wait, and look now and then whether this peer is still in the run."""
        pause, gone_at, pauser = PAUSE_S, 0.0, threading.Event()
        while not work.is_completed():
            pauser.wait(pause)
            pause = min(0.01, pause * 1.2)
            if pause >= 0.01 and self._gone():
                gone_at = gone_at or time.monotonic()
                if time.monotonic() > gone_at + GRACE_S:
                    self.lost = True
                    raise self._lost("this peer was put out of the run, and the others do not answer")
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(str(error)) from error

    def _lost(self, cause: str) -> NodeLost:
        return NodeLost(
            f"rank {self.place} of {self.size} of node {self.party}: another rank of this node is gone or hangs "
            f"({cause.splitlines()[0]}); ending this one. Let torchrun start the node again: it joins as a newcomer"
        )


def stale_store() -> str:
    """Why ranks that torchrun starts again would not come back; empty if they do."""
    shared, restarts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE"), os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if shared != "True" or restarts == "0" or os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1":
        return ""
    return (
        "ranks that torchrun starts again may wait for each other for half an hour, because they read from its store "
        "where those before them were (pytorch issue 135712); start it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 set"
    )


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(f"dim_{number}" for number in range(mesh.mesh.ndim))


def _fill(buffer: torch.Tensor, values: bytes) -> None:
    if values:
        buffer[: len(values)] = torch.frombuffer(bytearray(values), dtype=torch.uint8)


def node_of(parameters: Sequence[tuple[str, torch.Tensor]]) -> Node:
    """The node whose ranks hold these parameters. Raises `UsageError` if they do not lie on one mesh."""
    sharded: list[tuple[str, Any]] = [(name, each) for name, each in parameters if hasattr(each, "to_local")]
    (first, one), *rest = sharded
    for name, each in rest:
        if each.device_mesh != one.device_mesh or _copied(each) != _copied(one):
            raise UsageError(
                f"training: all parameters must be sharded over the same dimensions of one mesh, got {one.placements} "
                f"of {one.device_mesh} for {first!r} and {each.placements} of {each.device_mesh} for {name!r}; pass "
                "the same mesh to each fully_shard. Tensor parallelism beside it is not supported"
            )
    for name, each in parameters:
        if each.requires_grad and not hasattr(each, "to_local"):
            raise UsageError(
                f"training: parameter {name!r} must be sharded like the others or be frozen, got a plain tensor that "
                "is trained; call fully_shard on the whole model, too, and without ignored_params"
            )
    return Node(one.device_mesh, one.placements)


def _copied(parameter: Any) -> list[bool]:
    """Over which dimensions of the mesh several ranks hold the same."""
    return [isinstance(each, Replicate) for each in parameter.placements]
