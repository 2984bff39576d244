"""What code written for PRIME asks its `ElasticDeviceMesh`: the mesh inside this node, and which nodes are in the run.

Owns these answers; the run has the facts. PRIME's class (`src/zeroband/comms.py`) also makes connections, beats a heart
and measures links: there is nothing of that here, for the master and the run do it. Must not know how rounds are made.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pccl import UsageError
from pccl.training.run import Run


class WorldInfo(NamedTuple):
    """PRIME's names for where a process is: inside its node, and its node in the run."""

    rank: int
    """As torchrun counts, which starts the ranks of one node."""
    world_size: int
    local_rank: int
    local_world_size: int
    nnodes: int
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

    What PRIME's has, and what of it is here: docs/training.md."""

    def __init__(
        self,
        backend: str | None = None,
        enable: bool = True,
        live_recovery_rank_src: int | None = None,
        *,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """`backend`: of torch's process group; by default what this machine has. `enable`: False for a node by itself.
        `live_recovery_rank_src` is there for PRIME's callers: a newcomer gets the state from whichever nodes have it.
        `shape`: of the mesh, such as (2, 4) for two copies over four ranks each; by default all ranks."""
        if not dist.is_initialized():
            dist.init_process_group(backend or _backend())
        self._enable = enable
        self._shape = shape or (dist.get_world_size(),)
        self.cpu_local_mesh = self._mesh("cpu", self._shape)
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
        """That of this node, of its devices if it has any: other nodes are reached through the run alone."""
        return self.cuda_local_mesh if torch.cuda.is_available() else self.cpu_local_mesh

    @property
    def local_pg(self) -> Any:
        """All ranks of this node."""
        return dist.group.WORLD

    def follow(self, run: Run) -> None:
        """Answer from this run on, which is joined. The nodes that are in it count as known."""
        self._run, self._nodes = run, run.parties

    def maybe_reinit_global_pg(self, admit_joiners: bool = False) -> bool:
        """Whether the last round had other nodes than the one before the last look, and `joined` and `left` say which:
        the same on all ranks of a node. `admit_joiners` is there for PRIME's callers: the run lets candidates in at the
        end of each round."""
        if not self._enable:
            return False
        now = self._followed().parties
        self.joined = tuple(each for each in now if each not in self._nodes)
        self.left = tuple(each for each in self._nodes if each not in now)
        self._nodes = now
        return bool(self.joined or self.left)

    def get_global_pg(self, maybe_reinit: bool = False) -> "GlobalGroup":
        """The same as `global_pg`, after a look at who came or went."""
        if maybe_reinit:
            self.maybe_reinit_global_pg()
        return self.global_pg

    @property
    def global_pg(self) -> "GlobalGroup":
        """How many nodes there are, and which of them this is."""
        info = self.world_info
        return GlobalGroup(info.global_rank, info.global_world_size)

    @property
    def world_info(self) -> WorldInfo:
        """Where this process is."""
        run, rank, ranks = self._followed(), dist.get_rank(), dist.get_world_size()
        nodes, communicator = run.parties, run.communicator
        own = communicator.party_of(communicator.peer_id)
        return WorldInfo(rank, ranks, rank, ranks, 1, nodes.index(own), len(nodes), own)

    def _followed(self) -> Run:
        if self._run is None:
            raise UsageError("ElasticDeviceMesh: call follow(run) first, inside the `with` of the run")
        return self._run


def _backend() -> str:
    """For torch's own builds without CUDA have no nccl."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


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
