"""The structs of include/pccl.h as ctypes has them, and how they are read and written.

Owns their layouts, which are PCCL's; a test compares sizes and offsets with a compiler's. Must not know calls.
"""

import ctypes
import socket
from typing import TypeVar

from pccl.errors import UsageError
from pccl.types import Result

_Struct = TypeVar("_Struct", bound=ctypes.Structure)


class SocketAddress(ctypes.Structure):
    """`ccoip_socket_address_t`."""

    _fields_ = (
        ("protocol", ctypes.c_int),
        ("ipv4", ctypes.c_uint8 * 4),
        ("ipv6", ctypes.c_uint8 * 16),
        ("port", ctypes.c_uint16),
    )

    def text(self) -> str:
        """As our addresses are written."""
        match self.protocol:
            case 0:
                return f"{socket.inet_ntop(socket.AF_INET, bytes(self.ipv4))}:{self.port}"
            case 1:
                return f"[{socket.inet_ntop(socket.AF_INET6, bytes(self.ipv6))}]:{self.port}"
        raise wrong(f"protocol must be inetIPv4 (0) or inetIPv6 (1), got {self.protocol}")


class CommCreateParams(ctypes.Structure):
    """`pcclCommCreateParams_t`."""

    _fields_ = (
        ("master_address", SocketAddress),
        ("peer_group", ctypes.c_uint32),
        ("p2p_connection_pool_size", ctypes.c_uint32),
    )


class CReduceInfo(ctypes.Structure):
    """`pcclReduceInfo_t`."""

    _fields_ = (
        ("local_world_size", ctypes.c_uint32),
        ("tx_bytes", ctypes.c_uint64),
        ("rx_bytes", ctypes.c_uint64),
    )


class CReduceDescriptor(ctypes.Structure):
    """`pcclReduceDescriptor_t`, with the structs in it laid flat."""

    _fields_ = (
        ("count", ctypes.c_size_t),
        ("op", ctypes.c_int),
        ("tag", ctypes.c_uint64),
        ("datatype", ctypes.c_int),
        ("distribution_hint", ctypes.c_int),
        ("quantized_datatype", ctypes.c_int),
        ("algorithm", ctypes.c_int),
    )


class CReduceOpDescriptor(ctypes.Structure):
    """`pcclReduceOpDescriptor_t`."""

    _fields_ = (
        ("sendbuf", ctypes.c_void_p),
        ("recvbuf", ctypes.c_void_p),
        ("descriptor", CReduceDescriptor),
    )


class AsyncReduceOp(ctypes.Structure):
    """`pcclAsyncReduceOp_t`."""

    _fields_ = (("comm", ctypes.c_void_p), ("tag", ctypes.c_uint64))


class CTensorInfo(ctypes.Structure):
    """`pcclTensorInfo_t`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("datatype", ctypes.c_int),
        ("device_type", ctypes.c_int),
        ("allow_content_inequality", ctypes.c_bool),
    )


class CSharedState(ctypes.Structure):
    """`pcclSharedState_t`."""

    _fields_ = (("revision", ctypes.c_uint64), ("count", ctypes.c_size_t), ("infos", ctypes.c_void_p))


class CSharedStateSyncInfo(ctypes.Structure):
    """`pcclSharedStateSyncInfo_t`."""

    _fields_ = (("tx_bytes", ctypes.c_uint64), ("rx_bytes", ctypes.c_uint64))


class BuildInfo(ctypes.Structure):
    """`pcclBuildInfo_t`."""

    _fields_ = (("has_cuda_support", ctypes.c_bool),)


class Handle(ctypes.Structure):
    """Room for a handle."""

    _fields_ = (("value", ctypes.c_void_p),)


class Number(ctypes.Structure):
    """Room for an `int`."""

    _fields_ = (("value", ctypes.c_int),)


class Truth(ctypes.Structure):
    """Room for a `bool`."""

    _fields_ = (("value", ctypes.c_bool),)


def wrong(reason: str) -> UsageError:
    """An argument that is refused."""
    return UsageError(reason, Result.INVALID_ARGUMENT)


def at(kind: type[_Struct], address: int, what: str) -> _Struct:
    """What lies there, where it lies: writing to it writes to the caller's memory."""
    if not address:
        raise wrong(f"{what} must not be NULL")
    return kind.from_address(address)


def many_at(kind: type[_Struct], address: int, count: int, what: str) -> list[_Struct]:
    """So many of them, one behind the other."""
    if not count:
        return []
    size = ctypes.sizeof(kind)
    return [at(kind, address and address + place * size, what) for place in range(count)]
