"""Training with PyTorch on top of the communicator. Only modules in here import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pccl.training.data import ElasticSampler
    from pccl.training.diloco import DiLoCo, LocalSGD
    from pccl.training.parallel import DataParallel
    from pccl.training.shards import Shards

__all__ = ["DataParallel", "DiLoCo", "ElasticSampler", "LocalSGD", "Shards"]

_HOMES = {"ElasticSampler": "data", "DataParallel": "parallel", "Shards": "data"}


def __getattr__(name: str) -> Any:
    """Looked up when asked for: `SharedState.from_module` needs none of these."""
    if name not in __all__:
        raise AttributeError(f"module 'pccl.training' has no attribute {name!r}")
    return getattr(import_module(f"pccl.training.{_HOMES.get(name, 'diloco')}"), name)
