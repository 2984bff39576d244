"""Training with PyTorch on top of the communicator. Only modules in here import torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pccl.training.diloco import DiLoCo, LocalSGD

__all__ = ["DiLoCo", "LocalSGD"]


def __getattr__(name: str) -> Any:
    """Looked up when asked for: `SharedState.from_module` needs none of these."""
    if name not in __all__:
        raise AttributeError(f"module 'pccl.training' has no attribute {name!r}")
    from pccl.training import diloco

    return getattr(diloco, name)
