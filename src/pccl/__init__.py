"""Fault-tolerant collective communication over the internet: peers join and vanish, training goes on.

Owns the public names. Importing it loads neither numpy nor torch nor the native part, which comes with the first
`Communicator`.
"""

import importlib
import sys
from typing import Any

from pccl.api.communicator import Communicator
from pccl.api.feedback import ErrorFeedback
from pccl.api.master_node import MasterNode
from pccl.api.pccl_calls import AsyncReduceHandle
from pccl.api.shared_state import SharedState, SharedStateSyncInfo, TensorInfo
from pccl.api.work import Shares, ShareWork, Work
from pccl.codec import Codec
from pccl.compat import cuda
from pccl.compat.descriptors import QuantizationOptions, ReduceDescriptor, ReduceOpDescriptor, ReduceOperandDescriptor
from pccl.errors import (
    CallMismatch,
    CollectiveAborted,
    CollectiveTimedOut,
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
from pccl.release import release
from pccl.types import (
    Attribute,
    Awaited,
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

sys.modules[f"{__name__}.cuda"] = cuda  # Scripts written for PCCL may import it by this name.

__all__ = [
    "AsyncReduceHandle",
    "Attribute",
    "Awaited",
    "CallMismatch",
    "Codec",
    "CollectiveAborted",
    "CollectiveTimedOut",
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
    """What is looked up when it is asked for: `__version__`, because that takes longer than all the rest of the import,
    and `torch` and `np`, which scripts written for PCCL take from here."""
    if name in _LIBRARIES:
        try:
            return importlib.import_module(_LIBRARIES[name])
        except ImportError as error:
            raise AttributeError(f"pccl.{name}: {_LIBRARIES[name]} is not installed") from error
    if name != "__version__":
        raise AttributeError(f"module 'pccl' has no attribute {name!r}")
    return release()


_LIBRARIES = {"torch": "torch", "np": "numpy"}
