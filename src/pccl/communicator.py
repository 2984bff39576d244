"""A peer's membership in a run, as blocking calls.

Owns the `Communicator`: its control thread, its state as the user sees it, and the translation of answers into values
and exceptions. Must not know how anything is decided or sent.
"""

import asyncio
import atexit
import logging
import os
import secrets
import threading
import weakref
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, Unpack

from msgspec import structs

from pccl.config import PeerConfig, PeerLimitSettings, choose_data_plane, configure_logging
from pccl.core.effects import (
    Answer,
    ArePeersPending,
    Collective,
    Committed,
    Failure,
    FailureKind,
    Request,
    UpdateTopology,
    WaitAccepted,
)
from pccl.core.messages import CollectiveSpec
from pccl.core.peer import Peer, PeerIdentity
from pccl.dataplane.buffers import buffers
from pccl.errors import MasterLost, ProtocolError, UsageError, to_exception
from pccl.net.bounds import peer_bounds
from pccl.net.data_plane import DataPlane
from pccl.net.peer_shell import NotOurMaster, PeerShell
from pccl.net.sockets import in_words
from pccl.net.thread import LoopEnded, LoopThread
from pccl.types import Attribute, PeerId, ReduceInfo, ReduceOp

log = logging.getLogger("pccl")

ATTEMPT_PAUSE_S = 1.0
"""Between two attempts to connect, like PCCL: peers are often started before their master."""

ATTEMPT_TIMEOUT_S = 10.0
"""One attempt: a few round trips, with room for lost segments."""

GOODBYE_S = 3.0
"""Leaving waits this long for running collectives to stop and for the master to hear of it; then the connection is
closed, which says the same with fewer words."""

EXIT_GOODBYE_S = 1.0
"""The same at the end of the process, which nobody wants to wait for."""


class Communicator:
    """One peer of a run: `connect`, work, `close`; also a context manager that does the first and the last.

    `address` is the master's `host:port` (`[IPv6]:port` too). Peers of the same `peer_group` reduce together.
    `p2p_connection_pool_size` is the number of lanes to each neighbour; 0 leaves it to the group. `listen` is where
    this peer waits for lanes (`host`, `:port` or `host:port`; by default any address and a port that the kernel
    chooses), `announce` is where others shall dial it, when that is not the same. `data_plane` is "native", or
    "reference" where there is no compiler and speed does not matter. `limits` are those of `core.limits.PeerLimits`.
    Each setting but the first two can also come from the environment: see `config`.

    Calls block; Ctrl-C interrupts them. One thread at a time makes calls, except for `are_peers_pending`."""

    def __init__(
        self,
        address: str,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        listen: str = "",
        announce: str = "",
        data_plane: str = "",
        **limits: Unpack[PeerLimitSettings],
    ) -> None:
        configure_logging()
        self._config = PeerConfig.resolve(address, peer_group, p2p_connection_pool_size, (listen, announce), limits)
        self._data_plane = _data_plane(choose_data_plane(data_plane), self._config.limits.stall_s)
        self._process = os.getpid()
        self._membership: _Membership | None = None
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
        self._check_process()
        if self._closed:
            raise UsageError("connect: this Communicator was closed; build a new one")
        if self._membership is not None:
            raise UsageError("connect: this Communicator is connected already; build a new one to join again")
        if n_attempts < 1:
            raise UsageError(f"connect: n_attempts is {n_attempts}, but at least one attempt is needed")
        membership = _Membership(self._config, self._data_plane)
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

    def close(self) -> None:
        """Leave the run, if this peer is in it. Never hangs, and may be called again."""
        self._check_process()
        self._closed = True
        if self._membership is not None:
            self._membership.leave(GOODBYE_S)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def update_topology(self) -> None:
        """Admit whoever waits. Returns when all accepted peers have called it and the new ring stands."""
        self._call("update_topology", UpdateTopology())

    def are_peers_pending(self) -> bool:
        """Does anybody wait to be admitted? All accepted peers must ask, and all get the same answer."""
        return bool(self._call("are_peers_pending", ArePeersPending()))

    def all_reduce(self, send: Any, recv: Any = None, *, op: ReduceOp = ReduceOp.SUM, tag: int = 0) -> ReduceInfo:
        """Reduce `send` with the same tensor of all peers of this group into `recv`; without `recv`, in place.

        numpy arrays or torch tensors, contiguous, on the CPU. All peers end with the same bits. When it raises, `send`
        is as it was; after `CollectiveAborted` the group is rewired and the same call can be made again at once."""
        membership = self._connected("all_reduce")
        pair = buffers(send, send if recv is None else recv)
        spec = CollectiveSpec(pair.send.count, pair.send.dtype, ReduceOp(op))
        offers = self._data_plane.offers
        offers.offer(tag, pair)
        answer = membership.reduce(Collective(tag, spec))
        traffic = offers.settle(tag, isinstance(answer, Committed))
        if not isinstance(answer, Committed):
            raise to_exception(_failure(answer))
        return ReduceInfo(len(answer.ring), traffic.sent_bytes, traffic.received_bytes)

    def get_attribute(self, attribute: Attribute) -> int:
        """A size of the run, as of the latest epoch. Never waits."""
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

    def _connected(self, what: str) -> "_Membership":
        self._check_process()
        if self._closed:
            raise UsageError(f"{what}: this Communicator was closed; build a new one")
        if self._membership is None:
            raise UsageError(f"{what}: call connect first")
        return self._membership

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this Communicator belongs to the process that built it, not to its forked children")


class _Membership:
    """What exists from `connect` to `close`. The control thread knows this object, but not the `Communicator`, so that
    an abandoned `Communicator` is collected."""

    core: Peer

    def __init__(self, config: PeerConfig, data_plane: DataPlane) -> None:
        self._config = config
        self._bounds = peer_bounds(config.lanes, config.connection_dead_s)
        # A lane that is offered too early costs a descriptor, like a stranger.
        early_offers_max = min(config.limits.early_offers_max, self._bounds.strangers_max)
        self._limits = structs.replace(config.limits, early_offers_max=early_offers_max)
        self._data_plane = data_plane
        self._shell: PeerShell | None = None
        self._thread = LoopThread("pccl-control", daemon=True)
        self._leaving = threading.Lock()
        self._farewells: list[asyncio.Future[None]] = []
        """Kept: the loop itself would let the collector have them."""
        _living.add(self)

    def connect(self, n_attempts: int) -> Answer:
        """Join, and wait to be accepted."""
        return self._thread.run(self._connect(n_attempts))

    async def _connect(self, n_attempts: int) -> Answer:
        listen = self._config.listen
        self._shell = PeerShell(self._data_plane, self._bounds, _tell)
        try:
            port = self._shell.listen(listen.host, listen.port)
        except OSError as error:
            raise UsageError(f"listen (PCCL_LISTEN): cannot listen on {listen}: {in_words(error)}") from error
        await self._join(self._shell, port, n_attempts)
        return await self._shell.call(WaitAccepted())

    async def _join(self, shell: PeerShell, port: int, n_attempts: int) -> None:
        master = self._config.master
        for attempt in range(1, n_attempts + 1):
            # Somebody else in each attempt: the master may have heard of the last one and not yet of its end.
            self.core = Peer(self._identity(port), self._limits)
            try:
                await shell.join(self.core, (master.host, master.port), ATTEMPT_TIMEOUT_S)
                return
            except NotOurMaster as error:
                raise ProtocolError(f"connect: no master of ours at {master}: {error}") from error
            except OSError as error:
                cause = in_words(error) or f"no answer within {ATTEMPT_TIMEOUT_S:g} s"
            log.info("attempt %d of %d to reach the master at %s: %s", attempt, n_attempts, master, cause)
            if attempt < n_attempts:
                await asyncio.sleep(ATTEMPT_PAUSE_S)
        raise MasterLost(
            f"connect: no master at {master} after {n_attempts} attempts, the last one: {cause}. "
            "Start it with `pccl master`, or check the address"
        )

    def _identity(self, port: int) -> PeerIdentity:
        me, announce = PeerId(secrets.token_hex(16)), self._config.announce
        return PeerIdentity(me, self._config.group, announce.host, announce.port or port, self._config.lanes)

    def call(self, request: Request) -> Answer:
        assert self._shell is not None, "calls follow connect"
        try:
            return self._thread.run(self._shell.call(request))
        except LoopEnded:
            return Failure(FailureKind.CLOSED, "this Communicator was closed by another thread")

    def reduce(self, request: Collective) -> Answer:
        """Like `call`, without the cost of a task. Ctrl-C gives up the wait, not the collective, which goes on among
        the peers: its buffers are settled when it is over."""
        shell, answer = self._shell, Future[Answer]()
        assert shell is not None, "calls follow connect"
        try:
            self._thread.submit(lambda: shell.submit(request, answer.set_result))
            return answer.result()
        except LoopEnded:
            return Failure(FailureKind.CLOSED, "this Communicator was closed by another thread")
        except BaseException:
            offers = self._data_plane.offers
            answer.add_done_callback(lambda done: offers.settle(request.tag, isinstance(done.result(), Committed)))
            raise

    def leave(self, timeout_s: float) -> None:
        with self._leaving:
            if self not in _living:
                return
            _living.discard(self)
            try:
                self._thread.run(self._leave(timeout_s))
            finally:
                self._thread.stop()
            self._thread.join(timeout_s)

    def abandon(self) -> None:
        """Leave without waiting for anything."""
        if self in _living:
            _living.discard(self)
            self._thread.post(lambda: self._farewells.append(asyncio.ensure_future(self._leave_and_stop())))

    async def _leave(self, timeout_s: float) -> None:
        if self._shell is not None:
            await self._shell.leave(timeout_s)

    async def _leave_and_stop(self) -> None:
        try:
            await self._leave(GOODBYE_S)
        finally:
            self._thread.stop()


_living: "weakref.WeakSet[_Membership]" = weakref.WeakSet()
"""Memberships that have not left yet."""

# In a forked child they are the parent's: the child says no goodbye for it.
os.register_at_fork(after_in_child=_living.clear)


@atexit.register
def _leave_all() -> None:
    """So that the others read that a peer left, not that it broke, when a script merely ends."""
    for membership in list(_living):
        membership.leave(EXIT_GOODBYE_S)


def _data_plane(name: str, stall_s: float) -> DataPlane:
    """Imported when chosen: whoever uses the one need not have what the other needs."""
    if name == "reference":
        from pccl.dataplane.reference import ReferencePlane

        return ReferencePlane(stall_s)
    from pccl.dataplane.native import NativePlane

    return NativePlane(stall_s)


def _failure(answer: Answer) -> Failure:
    assert isinstance(answer, Failure), "a collective is committed or it failed"
    return answer


def _value(answer: Answer) -> Answer:
    if isinstance(answer, Failure):
        raise to_exception(answer)
    return answer


def _tell(reason: str) -> None:
    if reason:
        log.warning("%s", reason)
