"""The plain values that users, messages and the data plane share.

Owns the public names of PCCL's enumerations and their values. Knows nothing of numpy, torch, sockets or the protocol.
"""

from enum import IntEnum
from typing import NamedTuple, NewType

PeerId = NewType("PeerId", str)
"""Identity of a peer for one membership: 32 hexadecimal digits drawn by the peer itself, never reused."""


def short(peer: PeerId) -> str:
    """The first eight digits: enough to tell peers apart in a sentence meant for a person."""
    return peer[:8]


class ReduceOp(IntEnum):
    SUM = 0
    AVG = 1
    PROD = 2
    MAX = 3
    MIN = 4


class CollectiveKind(IntEnum):
    """What a collective does. Each peer brings a tensor of `count` elements, the same number everywhere."""

    ALL_REDUCE = 0
    """Everybody gets all tensors reduced to one."""
    BROADCAST = 1
    """Everybody gets the tensor of one peer, the root."""
    ALL_GATHER = 2
    """Everybody gets all tensors, one behind the other in the order of ranks."""
    REDUCE_SCATTER = 3
    """All tensors are reduced to one, of which the peer of rank k gets chunk k."""


class DataType(IntEnum):
    UINT8 = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    UINT32 = 4
    INT32 = 5
    UINT64 = 6
    INT64 = 7
    FLOAT16 = 8
    BFLOAT16 = 9
    FLOAT = 10
    DOUBLE = 11

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DataType.UINT8: 1,
    DataType.INT8: 1,
    DataType.INT16: 2,
    DataType.UINT16: 2,
    DataType.UINT32: 4,
    DataType.INT32: 4,
    DataType.UINT64: 8,
    DataType.INT64: 8,
    DataType.FLOAT16: 2,
    DataType.BFLOAT16: 2,
    DataType.FLOAT: 4,
    DataType.DOUBLE: 8,
}


class Attribute(IntEnum):
    GLOBAL_WORLD_SIZE = 1
    LOCAL_WORLD_SIZE = 2
    NUM_DISTINCT_PEER_GROUPS = 3
    LARGEST_PEER_GROUP_WORLD_SIZE = 4


class Result(IntEnum):
    """PCCL's result codes, carried by every error so that scripts written for PCCL keep working."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    INTERNAL_ERROR = 2
    INVALID_ARGUMENT = 3
    INVALID_USAGE = 4
    TOO_FEW_PEERS = 5
    MASTER_CONNECTION_FAILED = 6
    RANK_CONNECTION_FAILED = 7
    RANK_CONNECTION_LOST = 8
    NO_SHARED_STATE_AVAILABLE = 9
    PENDING_ASYNC_OPS = 10
    UPDATE_TOPOLOGY_FAILED = 11
    TOPOLOGY_OPTIMIZATION_FAILED = 12


class ReduceInfo(NamedTuple):
    """What a collective was, once it is committed."""

    local_world_size: int
    """Peers whose contributions are in the result."""
    tx_bytes: int
    """Bytes that this peer sent to its neighbours, headers included."""
    rx_bytes: int

    @property
    def world_size(self) -> int:
        """Another name that scripts written for PCCL use."""
        return self.local_world_size
