"""Training with PyTorch on top of the communicator. Only modules in here import torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pccl.training.data import ElasticSampler
    from pccl.training.diloco import DiLoCo, LocalSGD

__all__ = ["DiLoCo", "ElasticSampler", "LocalSGD"]


def __getattr__(name: str) -> Any:
    """Looked up when asked for: `SharedState.from_module` needs none of these."""
    if name not in __all__:
        raise AttributeError(f"module 'pccl.training' has no attribute {name!r}")
    from pccl.training import data, diloco

    return getattr(data if name == "ElasticSampler" else diloco, name)
