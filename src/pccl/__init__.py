"""Fault-tolerant collective communication over the internet: peers join and vanish, training goes on.

Owns the public names. Importing it loads neither numpy nor torch nor the native part, which comes with the first
`Communicator`.
"""

import importlib
from typing import Any

from pccl import cuda
from pccl.codec import Codec
from pccl.communicator import Communicator
from pccl.descriptors import QuantizationOptions, ReduceDescriptor, ReduceOpDescriptor, ReduceOperandDescriptor
from pccl.errors import (
    CallMismatch,
    CollectiveAborted,
    Kicked,
    MasterLost,
    MembershipLost,
    PCCLError,
    ProtocolError,
    Refused,
    Retryable,
    SyncFailed,
    TooFewPeers,
    UnfinishedCollectives,
    UsageError,
)
from pccl.feedback import ErrorFeedback
from pccl.master_node import MasterNode
from pccl.shared_state import SharedState, SharedStateSyncInfo, TensorInfo
from pccl.shares import Shares, ShareWork
from pccl.types import (
    Attribute,
    DataType,
    DeviceType,
    DistributionHint,
    PeerId,
    QuantizationAlgorithm,
    ReduceInfo,
    ReduceOp,
    Result,
    SharedStateSyncStrategy,
)
from pccl.work import AsyncReduceHandle, Work

__all__ = [
    "AsyncReduceHandle",
    "Attribute",
    "CallMismatch",
    "Codec",
    "CollectiveAborted",
    "Communicator",
    "DataType",
    "DeviceType",
    "DistributionHint",
    "ErrorFeedback",
    "Kicked",
    "MasterLost",
    "MasterNode",
    "MembershipLost",
    "PCCLError",
    "PeerId",
    "ProtocolError",
    "QuantizationAlgorithm",
    "QuantizationOptions",
    "ReduceDescriptor",
    "ReduceInfo",
    "ReduceOp",
    "ReduceOpDescriptor",
    "ReduceOperandDescriptor",
    "Refused",
    "Result",
    "Retryable",
    "ShareWork",
    "SharedState",
    "SharedStateSyncInfo",
    "SharedStateSyncStrategy",
    "Shares",
    "SyncFailed",
    "TensorInfo",
    "TooFewPeers",
    "UnfinishedCollectives",
    "UsageError",
    "Work",
    "cuda",
]


def __getattr__(name: str) -> Any:
    """What is looked up when somebody asks: `__version__`, because that takes longer than all the rest of the import,
    and `torch` and `np`, which scripts written for PCCL take from here."""
    if name in _LIBRARIES:
        try:
            return importlib.import_module(_LIBRARIES[name])
        except ImportError as error:
            raise AttributeError(f"pccl.{name}: {_LIBRARIES[name]} is not installed") from error
    if name != "__version__":
        raise AttributeError(f"module 'pccl' has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pccl")
    except PackageNotFoundError:
        return "dev"  # Used from its sources, without an installation.


_LIBRARIES = {"torch": "torch", "np": "numpy"}
