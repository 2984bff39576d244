"""A peer's membership in a run, as the calls that users make.

Owns the `Communicator`: what it checks before anything moves, and the translation of answers into values and
exceptions. Must not know how anything is decided or sent.
"""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from pccl.config import PeerConfig, PeerLimitSettings, choose_data_plane, configure_logging, switched_on
from pccl.core.effects import Answer, ArePeersPending, Failure, InSync, Request, SyncShared, UpdateTopology
from pccl.core.messages import CollectiveSpec
from pccl.dataplane.device import Operands, contribution, operands
from pccl.dataplane.manifest import Holding
from pccl.dataplane.staging import Gathered, Pool
from pccl.descriptors import (
    QuantizationOptions,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    check_operand,
    codec_of,
)
from pccl.errors import UsageError, to_exception
from pccl.membership import GOODBYE_S, Membership, leave_on_sigterm, make_data_plane
from pccl.orders import Op, Quantize, how, of_descriptor, of_kind, of_many, of_tensor, operation, spec_of, total
from pccl.shared_state import SharedState, SharedStateSyncInfo, hashed, keep
from pccl.shares import Shares, ShareWork, root_of
from pccl.types import Attribute, CollectiveKind, PeerId, ReduceInfo, ReduceOp, Result, SharedStateSyncStrategy
from pccl.work import AsyncReduceHandle, Work


class Communicator:
    """One peer of a run: `connect`, work, `close`; also a context manager that does the first and the last.

    `address` is the master's `host:port` (`[IPv6]:port` too), or several of them with commas between: where a standby
    takes over when the first one is gone. Peers of the same `peer_group` reduce together.
    `p2p_connection_pool_size` is the number of lanes to each neighbour; 0 leaves it to the group. `listen` is where
    this peer waits for lanes (`host`, `:port` or `host:port`; by default any address and a port that the kernel
    chooses), `announce` is where others shall dial it, when that is not the same. `data_plane` is "native", or
    "reference" where there is no compiler and speed does not matter. `sigterm` says whether SIGTERM shall end the
    process with a goodbye, provided that nobody else handles it. `limits` are those of `core.limits.PeerLimits`.
    Each setting but the first two can also come from the environment: see `config`.

    Threads. Calls block; Ctrl-C interrupts the wait. Any number of threads may launch collectives and wait for them,
    in any order, as long as those in flight have different tags and do not share memory; those that find no free lane
    wait. `are_peers_pending` may run beside them. `update_topology` may not: it needs all collectives of this peer to
    be finished, and none may be launched while it waits. `close` may be called at any time, and ends whatever waits.
    Breaking one of these rules raises `UsageError`. A forked child has no part in its parent's Communicator."""

    def __init__(
        self,
        address: str,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        listen: str = "",
        announce: str = "",
        data_plane: str = "",
        sigterm: bool | None = None,
        **limits: Unpack[PeerLimitSettings],
    ) -> None:
        configure_logging()
        self._config = PeerConfig.resolve(address, peer_group, p2p_connection_pool_size, (listen, announce), limits)
        self._data_plane = make_data_plane(choose_data_plane(data_plane), self._config.limits.stall_s)
        self._sigterm = switched_on("sigterm", sigterm)
        self._process = os.getpid()
        self._membership: Membership | None = None
        self._staging = Pool()
        self._closed = False

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The collector may run this in any thread, the control thread too: nothing here may wait.
        membership = getattr(self, "_membership", None)
        if membership is not None and self._process == os.getpid():
            membership.abandon()

    # ── joining and leaving ──────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, n_attempts: int = 5) -> None:
        """Join the run; returns when this peer is accepted, which takes until the others call `update_topology`.

        Raises `MasterLost` when no master answered in `n_attempts`, `Refused` when it does not admit this peer; after
        either it may be called again."""
        self._check_outside("connect", n_attempts)
        membership = Membership(self._config, self._data_plane)
        try:
            answer = membership.connect(n_attempts)
        except BaseException:
            membership.abandon()
            raise
        if isinstance(answer, Failure):
            # Out before it was in: what is left of it goes, so that the next connect begins anew.
            membership.leave(GOODBYE_S)
            raise to_exception(answer)
        self._membership = membership
        if self._sigterm:
            leave_on_sigterm()

    def close(self) -> None:
        """Leave the run, if this peer is in it. Never hangs, and may be called again."""
        self._check_process()
        self._closed = True
        if self._membership is not None:
            self._membership.leave(GOODBYE_S)

    # ── calls of all peers ───────────────────────────────────────────────────────────────────────────────────────────

    def update_topology(self) -> None:
        """Admit whoever waits. Returns when all accepted peers have called it and the new ring stands."""
        _value(self._connected("update_topology").call_alone("update_topology", UpdateTopology()))

    def are_peers_pending(self) -> bool:
        """Does anybody wait to be admitted? All accepted peers must ask, and all get the same answer."""
        return bool(self._call("are_peers_pending", ArePeersPending()))

    # ── collectives ──────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ...,
        tag: int = ...,
        operand_descriptor: ReduceOperandDescriptor | None = ...,
        quantization_options: QuantizationOptions | None = ...,
        quantize: Quantize | None = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
    ) -> ReduceInfo: ...

    @overload
    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ...,
        tag: int = ...,
        operand_descriptor: ReduceOperandDescriptor | None = ...,
        quantization_options: QuantizationOptions | None = ...,
        quantize: Quantize | None = ...,
        retry: bool = ...,
        async_op: Literal[True],
    ) -> Work: ...

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        quantize: Quantize | None = None,
        retry: bool = False,
        async_op: bool = False,
    ) -> ReduceInfo | Work:
        """Reduce `send` with the same tensor of all peers of this group into `recv`; without `recv`, in place.

        Tensors are contiguous: numpy arrays, torch tensors, or anything with `__dlpack__` or a buffer on the CPU; torch
        tensors of a device are reduced in a copy. `op` is a `ReduceOp` or its name. All peers end with the same bits.

        With `quantize` floats travel as codes: "int8" has a quarter of the bytes of float32, "int4" and "e3m0" have an
        eighth; a `Codec` has choices, an `ErrorFeedback` makes good in the next round what was lost in this one. All
        peers must choose alike. docs/quantisation.md says what each costs.

        When it raises, `send` is as it was. After `CollectiveAborted` the group is rewired, and the same call can be
        made again at once; with `retry` that is done here, with whoever is left, until it is done or nobody is left to
        reduce with, which is `TooFewPeers`. With `async_op` it returns a `Work` to wait for."""
        membership = self._connected("all_reduce")
        what = operands(send, send if recv is None else recv, "all_reduce")
        check_operand(operand_descriptor, what.buffers.send.dtype, "all_reduce")
        options = codec_of(quantization_options, what.buffers.send.dtype, "all_reduce")
        way = how("all_reduce", retry, quantize, options)
        order = of_tensor("all_reduce", tag, operation(op, "all_reduce"), what, way)
        work = Work(membership.launch(order), self)
        return work if async_op else work.wait()

    def all_reduce_async(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
    ) -> AsyncReduceHandle:
        """PCCL's form of `all_reduce` with `async_op`: its handle does not raise, but returns a result code."""
        return AsyncReduceHandle(
            self.all_reduce(
                send,
                recv,
                op=op,
                tag=tag,
                operand_descriptor=operand_descriptor,
                quantization_options=quantization_options,
                async_op=True,
            )
        )

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """Reduce all of these, each by itself, at most `max_in_flight` at a time, and again those that were aborted.

        As in PCCL each commits on its own, so that two of them may be reduced among different peers when one is lost
        in between; `all_reduce_many` has them all or none. Raises `TooFewPeers` when nobody is left to reduce with."""
        call = "all_reduce_multiple_with_retry"
        membership = self._connected(call)
        if max_in_flight < 1:
            raise UsageError(f"{call}: max_in_flight is {max_in_flight}, but at least one must fly")
        orders = [of_descriptor(call, each) for each in descriptors]
        works: list[Work] = []
        try:
            for number, order in enumerate(orders):
                if number >= max_in_flight:
                    works[number - max_in_flight].wait()
                works.append(Work(membership.launch(order), self))
            infos = [work.wait() for work in works]
        finally:
            # Whatever happened, all tensors are the caller's again when this returns.
            for work in works:
                work.settled()
        return total(infos, membership.group_size)

    @overload
    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        *,
        op: Op = ...,
        tag: int = ...,
        quantize: Quantize | None = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
    ) -> ReduceInfo: ...

    @overload
    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        *,
        op: Op = ...,
        tag: int = ...,
        quantize: Quantize | None = ...,
        retry: bool = ...,
        async_op: Literal[True],
    ) -> Work: ...

    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        *,
        op: Op = ReduceOp.SUM,
        tag: int = 0,
        quantize: Quantize | None = None,
        retry: bool = False,
        async_op: bool = False,
    ) -> ReduceInfo | Work:
        """Reduce many tensors in place as one transaction: all of them among the same peers, or none of them.

        The tensors are gathered into one stretch of memory for each type of element, each stretch is one collective,
        and when all are committed the result is copied back. So no tensor is touched before the result stands, and all
        inputs are intact when it raises. The price: two copies, and memory of twice the tensors' length, which is kept
        for the next call. Peers must pass tensors of the same lengths and types in the same order. `quantize` is as in
        `all_reduce`, and then all tensors must be floats."""
        call = "all_reduce_many"
        way = how(call, retry, quantize)
        membership, arrays, reduce_op = self._connected(call), list(tensors), operation(op, call)
        if not arrays:
            raise UsageError(f"{call}: there is no tensor to reduce", Result.INVALID_ARGUMENT)
        if len(arrays) == 1:
            order = of_tensor(call, tag, reduce_op, operands(arrays[0], arrays[0], call), way)
        else:
            order = of_many(call, tag, reduce_op, Gathered(arrays, f"{call}: tensors", self._staging), way)
        work = Work(membership.launch(order), self)
        return work if async_op else work.wait()

    # ── other kinds ──────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def broadcast(
        self,
        tensor: Any,
        root: str | int,
        *,
        tag: int = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
    ) -> ReduceInfo: ...

    @overload
    def broadcast(
        self, tensor: Any, root: str | int, *, tag: int = ..., retry: bool = ..., async_op: Literal[True]
    ) -> Work: ...

    def broadcast(
        self, tensor: Any, root: str | int, *, tag: int = 0, retry: bool = False, async_op: bool = False
    ) -> ReduceInfo | Work:
        """Give everybody in this group the tensor of one peer, named by its id, or by its rank in the present ring.

        In place on all others, under the rules of `all_reduce`: all have it, or nobody's tensor was touched. When the
        root is lost it raises `CollectiveAborted`, and the next call with that root `CallMismatch`: name another."""
        membership, call = self._connected("broadcast"), "broadcast"
        what = operands(tensor, tensor, call)
        spec = spec_of(CollectiveKind.BROADCAST, what.buffers.send, ReduceOp.SUM, root_of(root, membership.core.ring))
        work = Work(membership.launch(of_kind(call, tag, spec, what, retry)), self)
        return work if async_op else work.wait()

    @overload
    def all_gather(
        self, tensor: Any, *, tag: int = ..., retry: bool = ..., async_op: Literal[False] = ...
    ) -> Shares: ...

    @overload
    def all_gather(self, tensor: Any, *, tag: int = ..., retry: bool = ..., async_op: Literal[True]) -> ShareWork: ...

    def all_gather(
        self, tensor: Any, *, tag: int = 0, retry: bool = False, async_op: bool = False
    ) -> Shares | ShareWork:
        """Give everybody in this group the tensors of all, in the order of `Shares.info.peers`. The result is new
        memory, since only its start decides how many take part."""
        what = contribution(tensor, "all_gather")
        spec = spec_of(CollectiveKind.ALL_GATHER, what.buffers.send, ReduceOp.SUM)
        work = self._share("all_gather", tag, spec, (tensor, what), retry)
        return work if async_op else work.shares()

    @overload
    def reduce_scatter(
        self, tensor: Any, *, op: Op = ..., tag: int = ..., retry: bool = ..., async_op: Literal[False] = ...
    ) -> Shares: ...

    @overload
    def reduce_scatter(
        self, tensor: Any, *, op: Op = ..., tag: int = ..., retry: bool = ..., async_op: Literal[True]
    ) -> ShareWork: ...

    def reduce_scatter(
        self, tensor: Any, *, op: Op = ReduceOp.SUM, tag: int = 0, retry: bool = False, async_op: bool = False
    ) -> Shares | ShareWork:
        """Reduce a tensor with those of all peers of this group, and give each peer one part of the result: of equal
        length but for one element, in the order of ranks. `Shares.span` says which part is here."""
        what = contribution(tensor, "reduce_scatter")
        spec = spec_of(CollectiveKind.REDUCE_SCATTER, what.buffers.send, operation(op, "reduce_scatter"))
        work = self._share("reduce_scatter", tag, spec, (tensor, what), retry)
        return work if async_op else work.shares()

    def _share(self, call: str, tag: int, spec: CollectiveSpec, given: tuple[Any, Operands], retry: bool) -> ShareWork:
        membership, (tensor, what) = self._connected(call), given
        transaction = membership.launch(of_kind(call, tag, spec, what, retry))
        return ShareWork(transaction, self, tensor, membership.core.identity.peer)

    # ── shared state ─────────────────────────────────────────────────────────────────────────────────────────────────

    def prefetch_shared_state(self, shared_state: SharedState, n_attempts: int = 5) -> SharedStateSyncInfo:
        """Before `connect`: fetch what the group holds while it trains on, so that the first sync has little to bring.

        Nobody waits for this peer meanwhile. It pulls what the last sync agreed on from a few of those who held it,
        each of which gives no more bandwidth than its `serve_bytes_s`; what they have changed since is left out.
        `rx_bytes` says how much came: 0 if nobody has anything to give. The state is not in step afterwards but `torn`,
        unless nothing of that was of use, and its revision stays as it is: `connect` and `sync_shared_state` fetch the
        rest.

        Raises `SyncFailed` when every holder was lost: what came is kept, so call it again or connect. Raises
        `CallMismatch` if the entries differ from the group's, and what `connect` raises."""
        self._check_outside("prefetch_shared_state", n_attempts)
        manifest, entries = hashed(shared_state)
        membership = Membership(self._config, self._data_plane)
        try:
            answer, traffic = membership.visit(n_attempts, Holding(entries, manifest))
        except BaseException:
            shared_state.interrupted(membership.pulled)
            raise
        finally:
            membership.leave(GOODBYE_S)
        if membership.pulled:
            # Chunks of the group's between our own: until a sync has brought the rest nobody may be given this.
            shared_state.interrupted(True)
            shared_state.take()
        _value(answer)
        return SharedStateSyncInfo(traffic.sent_bytes, traffic.received_bytes)

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
    ) -> SharedStateSyncInfo:
        """Make sure that all peers of this group hold the same state, and let those that do not have it.

        All of them call it, with no collective unfinished. The highest revision wins, among equals the most popular
        content; who lacks it pulls it from those who have it, and `revision` is set to the elected one. For a peer in
        step `rx_bytes` is 0. Tensors must not be written while it runs.

        Raises `SyncFailed` on every peer when somebody did not get it: call it again, and only what is missing is
        fetched. A failed call leaves each chunk of 4 MiB of a tensor either as it was or as elected. Raises
        `CallMismatch` for a peer whose entries differ from the elected ones in name, type or length; others go on."""
        membership = self._connected("sync_shared_state")
        manifest, entries = hashed(shared_state)
        how, digests = shared_state.strategy(SharedStateSyncStrategy(strategy)), (manifest.layout, manifest.content)
        request = SyncShared(shared_state.revision, how, *digests)
        holding = Holding(entries, manifest)
        try:
            answer, traffic = membership.sync(holding, request, lambda: keep(shared_state, holding))
        except BaseException:
            shared_state.interrupted(membership.pulled)
            raise
        if traffic.received_bytes:
            shared_state.take()
        held = answer.revision if isinstance(answer, InSync | Failure) else None
        if held is None:
            shared_state.interrupted(membership.pulled)
        else:
            shared_state.revision = held  # also after a failure, if it was that of somebody else
        _value(answer)
        return SharedStateSyncInfo(traffic.sent_bytes, traffic.received_bytes)

    # ── what is known ────────────────────────────────────────────────────────────────────────────────────────────────

    def get_attribute(self, attribute: Attribute) -> int:
        """A size of the run, as of the latest epoch; 1 once this peer is kicked or has lost its master for good. Never
        waits."""
        sizes = self._connected("get_attribute").core.sizes
        match Attribute(attribute):
            case Attribute.GLOBAL_WORLD_SIZE:
                return sizes.global_size
            case Attribute.LOCAL_WORLD_SIZE:
                return sizes.group_size
            case Attribute.NUM_DISTINCT_PEER_GROUPS:
                return sizes.groups
            case Attribute.LARGEST_PEER_GROUP_WORLD_SIZE:
                return sizes.largest_group

    @property
    def peer_id(self) -> PeerId:
        """Who this peer is for the duration of its membership."""
        return self._connected("peer_id").core.identity.peer

    @property
    def epoch(self) -> int:
        """The number of the present roster and ring."""
        return self._connected("epoch").core.epoch

    @property
    def ring(self) -> tuple[PeerId, ...]:
        """The peers of this group in ring order."""
        return self._connected("ring").core.ring

    @property
    def rank(self) -> int:
        """This peer's place in the ring of the present epoch; not an identity: it changes with the ring."""
        core = self._connected("rank").core
        return core.ring.index(core.identity.peer)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, what: str, request: Request) -> Answer:
        return _value(self._connected(what).call(request))

    def _connected(self, what: str) -> Membership:
        self._check_open(what)
        if self._membership is None:
            raise UsageError(f"{what}: call connect first")
        return self._membership

    def _check_outside(self, what: str, n_attempts: int) -> None:
        self._check_open(what)
        if self._membership is not None:
            raise UsageError(f"{what}: this Communicator is connected already; build a new one to join again")
        if n_attempts < 1:
            raise UsageError(f"{what}: n_attempts is {n_attempts}, but at least one attempt is needed")

    def _check_open(self, what: str) -> None:
        self._check_process()
        if self._closed:
            raise UsageError(f"{what}: this Communicator was closed; build a new one")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this Communicator belongs to the process that built it, not to its forked children")


def _value(answer: Answer) -> Answer:
    if isinstance(answer, Failure):
        raise to_exception(answer)
    return answer
