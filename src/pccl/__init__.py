"""Fault-tolerant collective communication over the internet: peers join and vanish, training goes on.

Owns the public names. Importing it loads neither numpy nor torch nor the native part, which comes with the first
`Communicator`.
"""

from pccl.communicator import Communicator
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
    TooFewPeers,
    UnfinishedCollectives,
    UsageError,
)
from pccl.master_node import MasterNode
from pccl.types import Attribute, DataType, PeerId, ReduceInfo, ReduceOp, Result

__all__ = [
    "Attribute",
    "CallMismatch",
    "CollectiveAborted",
    "Communicator",
    "DataType",
    "Kicked",
    "MasterLost",
    "MasterNode",
    "MembershipLost",
    "PCCLError",
    "PeerId",
    "ProtocolError",
    "ReduceInfo",
    "ReduceOp",
    "Refused",
    "Result",
    "Retryable",
    "TooFewPeers",
    "UnfinishedCollectives",
    "UsageError",
]


def __getattr__(name: str) -> str:
    """`__version__`, looked up when somebody asks: it takes longer than all the rest of the import."""
    if name != "__version__":
        raise AttributeError(f"module 'pccl' has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pccl")
    except PackageNotFoundError:
        return "dev"  # Used from its sources, without an installation.
