"""What code written for PRIME asks its `ElasticDeviceMesh`: the mesh inside this node, and which nodes are in the run.

Owns these answers; the run has the facts. PRIME's class (`src/zeroband/comms.py`) also makes connections, beats a heart
and measures links: there is nothing of that here, for the master and the run do it. Must not know how rounds are made.
"""

from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pccl import UsageError
from pccl.training.run import Run


class WorldInfo(NamedTuple):
    """PRIME's names for where a process is: inside its node, and its node in the run."""

    local_rank: int
    local_world_size: int
    global_rank: int
    """Of the node, from 0 on; not an identity: it changes when nodes come and go."""
    global_world_size: int
    """Nodes in the run."""
    global_unique_id: str
    """Of the node for as long as it is in the run."""


class ElasticDeviceMesh:
    """The mesh of this node's ranks, and the nodes of the run around it.

        mesh = ElasticDeviceMesh()
        parallelise(model, mesh.cuda_local_mesh)        # what you do with FSDP2
        with DiLoCo(address, model, optimizer) as run:
            mesh.follow(run)
            ...
            if mesh.maybe_reinit_global_pg():       # after a round
                print(mesh.joined, mesh.left)

    | PRIME | here |
    | --- | --- |
    | `mesh`, `cuda_local_mesh`, `cpu_local_mesh`, `local_pg` | the same, of this node: torchrun runs inside one node |
    | `world_info.global_rank`, `.global_world_size`, `.global_unique_id` | the same, by node |
    | `global_pg.size()`, `.rank()` | the same; it has no collectives: `DiLoCo` reduces |
    | `maybe_reinit_global_pg(admit_joiners)` | True if nodes came or went since the last call; the run lets them in |
    | `live_recovery`, `monitored_barrier`, `get_pings`, heartbeats | not needed: the run does it; see `run.metrics()` |
    """

    def __init__(self, backend: str = "cpu:gloo,cuda:nccl", shape: tuple[int, ...] | None = None) -> None:
        """`shape`: of the mesh, such as (2, 4) for two copies over four ranks each; by default all ranks."""
        if not dist.is_initialized():
            dist.init_process_group(backend)
        ranks = dist.get_world_size()
        self.cpu_local_mesh = self._mesh("cpu", shape or (ranks,))
        self._shape = shape or (ranks,)
        self._device_mesh: DeviceMesh | None = None
        self._run: Run | None = None
        self._nodes: tuple[str, ...] = ()
        self.joined: tuple[str, ...] = ()
        """Nodes that came between the last two looks."""
        self.left: tuple[str, ...] = ()
        """Nodes that went."""

    @staticmethod
    def _mesh(kind: str, shape: tuple[int, ...]) -> DeviceMesh:
        return init_device_mesh(
            kind, shape, mesh_dim_names=("intranode",) if len(shape) == 1 else ("copy", "intranode")
        )

    @property
    def cuda_local_mesh(self) -> DeviceMesh:
        """Of this node's devices."""
        if self._device_mesh is None:
            self._device_mesh = self._mesh("cuda", self._shape)
        return self._device_mesh

    @property
    def mesh(self) -> DeviceMesh:
        """That of this node: others are reached through the run alone."""
        return self.cpu_local_mesh

    @property
    def local_pg(self) -> Any:
        """The ranks that hold one model together."""
        return self.cpu_local_mesh.get_group("intranode")

    def follow(self, run: Run) -> None:
        """Answer from this run on, which is joined. The nodes that are in it count as known."""
        self._run, self._nodes = run, run.parties

    def maybe_reinit_global_pg(self, admit_joiners: bool = False) -> bool:
        """Whether the last round had other nodes than the one before the last look, and `joined` and `left` say which:
        the same on all ranks of a node. `admit_joiners` is there for PRIME's callers: the run lets candidates in at the
        end of each round."""
        now = self._followed().parties
        self.joined = tuple(each for each in now if each not in self._nodes)
        self.left = tuple(each for each in self._nodes if each not in now)
        self._nodes = now
        return bool(self.joined or self.left)

    @property
    def global_pg(self) -> "GlobalGroup":
        """How many nodes there are, and which of them this is."""
        info = self.world_info
        return GlobalGroup(info.global_rank, info.global_world_size)

    @property
    def world_info(self) -> WorldInfo:
        """Where this process is."""
        run, ranks = self._followed(), dist.get_world_size()
        nodes, communicator = run.parties, run.communicator
        own = communicator.party_of(communicator.peer_id)
        return WorldInfo(dist.get_rank(), ranks, nodes.index(own), len(nodes), own)

    def _followed(self) -> Run:
        if self._run is None:
            raise UsageError("ElasticDeviceMesh: call follow(run) first, inside the `with` of the run")
        return self._run


class GlobalGroup:
    """What is left of a process group over nodes: its size, and this node's place in it."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        """This node's."""
        return self._rank

    def size(self) -> int:
        """Nodes in the run."""
        return self._size
