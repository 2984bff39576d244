"""Ray starts the master and the peers, and starts again what has died: that alone, never the others.

    trainer = DataParallelTrainer(
        train,                                                   # joins with DiLoCo(os.environ["PCCL_MASTER"], …)
        backend_config=PCCLConfig(),
        scaling_config=ScalingConfig(num_workers=8),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=-1)),
    )
    trainer.fit()

Owns the master's actor and what Ray Train must know to leave survivors alone. Must not know what peers do. A worker is
Ray's: the process in which a peer runs; a node is a machine of its cluster.
"""

import os
import socket
from pathlib import Path
from typing import Any

from pccl import MasterNode
from pccl.credentials import leave_in_environment
from pccl.integrations import advise

with advise("ray"):
    import ray
    from ray.train import BackendConfig
    from ray.train.backend import Backend
    from ray.util import get_node_ip_address
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PORT = 48148
NAMESPACE = "pccl"
"""Of the master's actor, so that every driver of the cluster finds it by the name that has its port."""

CPUS = 0.0
"""That the master's actor claims: it decides a few times in a round, and must not wait for a place."""


class Master:
    """A master that Ray starts again when its process dies; peers come back to it, and the run goes on."""

    def __init__(self, port: int, secret: str) -> None:
        self._host = get_node_ip_address()
        self._master = MasterNode(f"{self._host}:{port}", secret=secret)
        self._master.run()

    def address(self) -> str:
        """What peers join at, with the token."""
        token = self._master.token
        return f"pccl://{self._host}:{self._master.port}{'#' if token else ''}{token}"

    def pid(self) -> int:
        """Of its process: another one after a restart."""
        return os.getpid()


_ACTOR: Any = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=CPUS)(Master)


def start_master(port: int = PORT, secret: str | os.PathLike[str] | None = None) -> Any:
    """The actor of the master that listens on this port of this node, started unless it is there. `secret` is the file
    of its secret, by default the same as that of `pccl master` on this port; "" for a master without one. Port 0 takes
    a free port. A restarted master must have the same address, so Ray starts it again on this node or not at all. Keep
    what is returned: the actor ends when no program of the cluster holds it."""
    chosen = port or _free_port()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": f"master-{chosen}", "namespace": NAMESPACE, "get_if_exists": True}
    file = _secret_file(chosen) if secret is None else secret
    return _ACTOR.options(scheduling_strategy=here, **options).remote(chosen, str(file))


def _free_port() -> int:
    with socket.create_server((get_node_ip_address(), 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _secret_file(port: int) -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return folder / "pccl" / f"{port}.secret"


class PCCLConfig(BackendConfig):
    """For a trainer of Ray Train (v2): each worker finds the master in `PCCL_MASTER`, and one that fails is replaced
    alone. `address` is that of a master outside Ray; otherwise one is started with `port` and `secret`
    (`start_master`), beside the trainer's controller. With `FailureConfig(max_failures=-1)` no failure is the last."""

    def __init__(
        self, address: str | None = None, *, port: int = PORT, secret: str | os.PathLike[str] | None = None
    ) -> None:
        self.address = address
        self.port = port
        self.secret = None if secret is None else str(secret)

    @property
    def backend_cls(self) -> type[Backend]:
        """Ray asks for it."""
        return PCCLBackend


class PCCLBackend(Backend):
    """What Ray Train does when its workers are there."""

    has_replica_groups = True
    """Each worker is a group of its own to Ray: it replaces those that fail, and the others are not touched."""

    def __init__(self) -> None:
        self._master: Any = None

    def on_start(self, worker_group: Any, backend_config: PCCLConfig) -> None:
        """Tell them the address: all at first, later the one that took a failed one's place."""
        address = backend_config.address
        if address is None:
            if self._master is None:
                self._master = start_master(backend_config.port, backend_config.secret)
            address = ray.get(self._master.address.remote())
        worker_group.execute(leave_in_environment, address)
