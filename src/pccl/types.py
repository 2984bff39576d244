"""The plain values that users, messages and the data plane share.

Owns the public names of PCCL's enumerations and their values. Knows nothing of sockets or the protocol, and of numpy
and torch only what they call their element types: neither is imported before one of theirs is asked for.
"""

import importlib
from enum import IntEnum
from typing import Any, NamedTuple, NewType, Self

PeerId = NewType("PeerId", str)
"""Identity of a peer for one membership: 32 hexadecimal digits drawn by the peer itself, never reused."""


def short(peer: PeerId) -> str:
    """The first eight digits: enough to tell peers apart in a sentence meant for a person."""
    return peer[:8]


TAG_MAX = 2**63 - 1
"""The largest tag of a user. A call over several types of elements is several collectives, one for each type: the
first has the tag of the call, the others, at most twelve with the one that gathers, have numbers above all tags of
users."""

_PARTS_FROM = TAG_MAX + 1
_FOLDED = 1 << 62
_PART_SHIFT = 58
_SPREAD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: a product with it spreads numbers that lie close together over all bits."""


def part_tag(tag: int, part: int) -> int:
    """The tag of one collective of a call: 64 bits hold a tag below 2^58 beside the number of its part. A larger one is
    folded to 58 bits; should two in flight ever fold alike, the second is refused as a tag in use."""
    if not part:
        return tag
    if tag >> _PART_SHIFT:
        tag = _FOLDED + (tag * _SPREAD % 2**64 >> (64 - _PART_SHIFT))
    return _PARTS_FROM + (part << _PART_SHIFT) + tag


def count_peers(number: int) -> str:
    """How many, in a sentence."""
    return f"{number} peer{'' if number == 1 else 's'}"


def tag_name(tag: int) -> str:
    """A tag in a sentence, as the user of the call knows it."""
    if tag <= TAG_MAX:
        return f"tag {tag}"
    part = tag % _FOLDED >> _PART_SHIFT
    whose = "a tag from 2^58 on" if tag & _FOLDED else f"tag {tag % 2**_PART_SHIFT}"
    return f"{whose} (part {part + 1})"


class ReduceOp(IntEnum):
    SUM = 0
    AVG = 1
    PROD = 2
    MAX = 3
    MIN = 4

    @classmethod
    def named(cls, op: object) -> "ReduceOp":
        """An operation by itself, its number, its name in any case, or another library's by its name: never by that
        one's number, since torch's 3 is MIN. Raises `ValueError`."""
        if type(op) is int and op in cls._value2member_map_:
            return cls(op)
        # Torch wraps its enumeration in objects whose `op` is a member of it.
        name = op if isinstance(op, str) else getattr(getattr(op, "op", op), "name", None)
        name = name.upper() if isinstance(name, str) else ""
        if name not in ("PRODUCT", *cls.__members__):
            raise ValueError(f"it must be one of {', '.join(each.name for each in cls)}, got {name or repr(op)}")
        return cls.PROD if name == "PRODUCT" else cls[name]


class CollectiveKind(IntEnum):
    """What a collective does. Each peer brings a tensor of `count` elements, the same number everywhere."""

    ALL_REDUCE = 0
    """Every peer gets all tensors reduced to one."""
    BROADCAST = 1
    """Every peer gets the tensor of one peer, the root."""
    ALL_GATHER = 2
    """Every peer gets all tensors, one behind the other in the order of ranks."""
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

    @property
    def element_name(self) -> str:
        """What numpy and torch call it, such as `float32`."""
        return _ELEMENT_NAMES[self]

    @classmethod
    def from_element_name(cls, name: str) -> Self:
        """The type that numpy and torch call so. Raises `ValueError`."""
        for dtype, known in _ELEMENT_NAMES.items():
            if known == name:
                return cls(dtype)
        raise ValueError(f"elements of type {name} cannot be reduced; these can: {', '.join(_ELEMENT_NAMES.values())}")

    @classmethod
    def from_torch_dtype(cls, dtype: Any) -> Self:
        """`DataType.FLOAT` for `torch.float32`, and so on. Raises `ValueError`."""
        return cls.from_element_name(str(dtype).removeprefix("torch."))

    def to_torch_dtype(self) -> Any:
        """`torch.float32` for `DataType.FLOAT`, and so on."""
        return getattr(importlib.import_module("torch"), self.element_name)

    @classmethod
    def from_numpy_dtype(cls, dtype: Any) -> Self:
        """`DataType.FLOAT` for `numpy.float32` or its dtype, and so on. Raises `ValueError`."""
        return cls.from_element_name(str(getattr(dtype, "name", "") or getattr(dtype, "__name__", dtype)))

    def to_numpy_dtype(self) -> Any:
        """`numpy.dtype("float32")` for `DataType.FLOAT`, and so on. Raises `ValueError` for bfloat16, which numpy has
        only where a package such as ml_dtypes has taught it."""
        try:
            return importlib.import_module("numpy").dtype(self.element_name)
        except TypeError:
            raise ValueError(f"numpy has no {self.element_name}") from None


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

_ELEMENT_NAMES = {
    DataType.UINT8: "uint8",
    DataType.INT8: "int8",
    DataType.INT16: "int16",
    DataType.UINT16: "uint16",
    DataType.UINT32: "uint32",
    DataType.INT32: "int32",
    DataType.UINT64: "uint64",
    DataType.INT64: "int64",
    DataType.FLOAT16: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT: "float32",
    DataType.DOUBLE: "float64",
}


class DeviceType(IntEnum):
    CPU = 0
    CUDA = 1

    @classmethod
    def from_torch_device_type(cls, name: str) -> "DeviceType | None":
        """The device that torch calls `cpu` or `cuda`; None for any other."""
        return cls.__members__.get(name.upper())


class DistributionHint(IntEnum):
    """How elements are distributed. Never used by PCCL, nor by us."""

    NONE = 0
    NORMAL = 1
    UNIFORM = 2


class QuantizationAlgorithm(IntEnum):
    NONE = 0
    MIN_MAX = 1
    ZERO_POINT_SCALE = 2


class SharedStateSyncStrategy(IntEnum):
    """Whose content may win in `sync_shared_state`, and who takes it over."""

    ENFORCE_POPULAR = 0
    RECEIVE_ONLY = 1
    SEND_ONLY = 2


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


class Awaited(NamedTuple):
    """Others wait for this peer."""

    call: str
    """What they have called, such as `tag 0` of a collective."""
    seconds: float
    """Since the first of them called it."""


class ReduceInfo(NamedTuple):
    """What a collective was, once it is committed; of one that was not, what it has cost."""

    local_world_size: int
    """Peers whose contributions are in the result; after a failure, peers in the group."""
    tx_bytes: int
    """Bytes that this peer sent to its neighbours, headers and aborted attempts included."""
    rx_bytes: int
    """The same received."""
    peers: tuple[PeerId, ...] = ()
    """Whose contributions are in the result, in ring order; empty after a failure."""
    seconds: float = 0.0
    """From the call to its end, votes and waiting included."""
    attempts: int = 1
    """How often it was tried; more than once only with `retry`."""
    pending: bool = False
    """Candidates waited to be admitted when it started. The same on all its peers, so that all can call
    `update_topology` without a vote on whether to."""
    gathered: tuple[Any, ...] = ()
    """What each of `peers` brought as `gather` of `all_reduce_many`, in their order."""
    lanes: int = 0
    """Of each link that it ran over: one all-reduce alone gets all that there are. 0 without a ring."""
    repeated_bytes: int = 0
    """Of those sent, second copies of what hung on a lane that had lost something."""

    @property
    def world_size(self) -> int:
        """Another name that scripts written for PCCL use."""
        return self.local_world_size
