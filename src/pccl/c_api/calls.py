"""PCCL's C functions, each by its name: words of 64 bits in, the caller's memory written, or an exception.

Owns what a NULL means and what is written where. Must not know how calls come in.
"""

import ctypes
from collections.abc import Callable

from pccl import ReduceInfo, UsageError, cuda
from pccl.arguments import choice
from pccl.c_api.layouts import (
    AsyncReduceOp,
    BuildInfo,
    CommCreateParams,
    CReduceDescriptor,
    CReduceInfo,
    CReduceOpDescriptor,
    CSharedState,
    CSharedStateSyncInfo,
    Handle,
    Number,
    SocketAddress,
    Truth,
    at,
    many_at,
    wrong,
)
from pccl.c_api.masters import MASTERS, CMaster
from pccl.c_api.peers import PEERS, CPeer
from pccl.types import Attribute, Result

CONNECT_ATTEMPTS = 1
"""As in PCCL: programs written for it try again themselves."""

_initialised = False


def _pccl_init(_: int) -> None:
    global _initialised
    _initialised = True


def _get_build_info(info: int) -> None:
    at(BuildInfo, info, "info").has_cuda_support = cuda.is_available()


# ── peers ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_initialised() -> None:
    if not _initialised:
        raise UsageError("pcclInit must be called first", Result.NOT_INITIALIZED)


def _peer(handle: int) -> CPeer:
    _check_initialised()
    return PEERS.find(handle)


def _create_communicator(params: int, out: int) -> None:
    _check_initialised()
    given, handle = at(CommCreateParams, params, "params"), at(Handle, out, "comm_out")
    address = given.master_address.text()
    handle.value = PEERS.add(CPeer(address, given.peer_group, given.p2p_connection_pool_size))


def _destroy_communicator(handle: int) -> None:
    _check_initialised()
    PEERS.remove(handle).close()


def _connect(handle: int) -> None:
    _peer(handle).communicator.connect(CONNECT_ATTEMPTS)


def _get_attribute(handle: int, attribute: int, out: int) -> None:
    peer, size = _peer(handle), at(Number, out, "p_attribute_out")
    size.value = peer.communicator.get_attribute(choice(Attribute, attribute, "attribute"))


def _update_topology(handle: int) -> None:
    _peer(handle).communicator.update_topology()


def _are_peers_pending(handle: int, out: int) -> None:
    peer, pending = _peer(handle), at(Truth, out, "pending_out")
    pending.value = peer.communicator.are_peers_pending()


def _optimize_topology(handle: int) -> None:
    _peer(handle).check_can_optimise()


# ── collectives and shared state ─────────────────────────────────────────────────────────────────────────────────────


def _all_reduce(send: int, recv: int, descriptor: int, handle: int, out: int) -> None:
    peer, given = _peer(handle), at(CReduceDescriptor, descriptor, "descriptor")
    _tell(peer.all_reduce(send, recv, given), out)


def _all_reduce_async(send: int, recv: int, descriptor: int, handle: int, out: int) -> None:
    peer, given = _peer(handle), at(CReduceDescriptor, descriptor, "descriptor")
    operation = at(AsyncReduceOp, out, "reduce_handle_out")
    peer.launch(send, recv, given)
    operation.comm, operation.tag = handle, given.tag


def _await_async_reduce(operation: int, out: int) -> None:
    given = at(AsyncReduceOp, operation, "reduce_handle")
    _tell(_peer(given.comm or 0).await_launched(given.tag), out)


def _all_reduce_multiple_with_retry(descriptors: int, count: int, handle: int, out: int, max_in_flight: int) -> None:
    peer, limit = _peer(handle), ctypes.c_int64(max_in_flight).value
    if not count:
        raise wrong("count must be at least 1, got 0")
    _tell(peer.all_reduce_multiple(many_at(CReduceOpDescriptor, descriptors, count, "descriptors"), limit), out)


def _tell(info: ReduceInfo, out: int) -> None:
    if out:
        told = CReduceInfo.from_address(out)
        told.local_world_size, told.tx_bytes, told.rx_bytes = info.local_world_size, info.tx_bytes, info.rx_bytes


def _synchronize_shared_state(handle: int, state: int, strategy: int, out: int) -> None:
    info = _peer(handle).sync(at(CSharedState, state, "shared_state"), strategy)
    if out:
        told = CSharedStateSyncInfo.from_address(out)
        told.tx_bytes, told.rx_bytes = info.tx_bytes, info.rx_bytes


# ── masters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _create_master(listen: int, out: int) -> None:
    handle = at(Handle, out, "p_master_handle_out")
    handle.value = MASTERS.add(CMaster(at(SocketAddress, listen, "listen_address").text()))


def _run_master(handle: int) -> None:
    MASTERS.find(handle).run()


def _master_await_termination(handle: int) -> None:
    MASTERS.find(handle).await_termination()


def _destroy_master(handle: int) -> None:
    MASTERS.remove(handle).interrupt()


CALLS: tuple[tuple[Callable[..., None], int], ...] = (
    (_pccl_init, 1),
    (_get_build_info, 1),
    (_create_communicator, 2),
    (_destroy_communicator, 1),
    (_connect, 1),
    (_get_attribute, 3),
    (_update_topology, 1),
    (_are_peers_pending, 2),
    (_optimize_topology, 1),
    (_all_reduce, 5),
    (_all_reduce_async, 5),
    (_await_async_reduce, 2),
    (_all_reduce_multiple_with_retry, 5),
    (_synchronize_shared_state, 4),
    (_create_master, 2),
    (_run_master, 1),
    (_master_await_termination, 1),
    (_destroy_master, 1),
)
"""Each with how many words it takes, in the order of `enum capi_call` in native/c_api/guest.h."""
