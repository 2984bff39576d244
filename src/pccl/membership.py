"""What exists of a peer from `connect` to `close`, and what happens to it when the process ends.

Owns the control thread of one membership, the calls into it, and goodbyes: when asked, at the interpreter's end, and on
SIGTERM. The control thread knows this object, but not the `Communicator`, so that an abandoned `Communicator` is
collected. Must not know how anything is decided or sent.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import secrets
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from msgspec import structs

from pccl.config import Address, PeerConfig
from pccl.core.effects import (
    Answer,
    Collective,
    Failure,
    FailureKind,
    FetchShared,
    InSync,
    Request,
    SyncShared,
    WaitAccepted,
)
from pccl.core.peer import Peer, PeerIdentity
from pccl.dataplane.manifest import Holding
from pccl.dataplane.offers import Offers, Traffic
from pccl.errors import MasterLost, ProtocolError, TooFewPeers, UnfinishedCollectives, UsageError
from pccl.net.bounds import peer_bounds
from pccl.net.control import NotOurMaster
from pccl.net.data_plane import DataPlane
from pccl.net.peer_shell import PeerShell
from pccl.net.sockets import in_words
from pccl.net.thread import LoopEnded, LoopThread
from pccl.net.transfers import Kept
from pccl.transaction import Order, Transaction
from pccl.types import PeerId

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

_CLOSED = Failure(FailureKind.CLOSED, "this Communicator was closed; build a new one to go on")


def make_data_plane(name: str, stall_s: float) -> DataPlane:
    """Imported when chosen: whoever uses the one need not have what the other needs."""
    if name == "reference":
        from pccl.dataplane.reference import ReferencePlane

        return ReferencePlane(stall_s)
    from pccl.dataplane.native import NativePlane

    return NativePlane(stall_s)


class Membership:
    """A peer's connection to a run. All methods may be called by any thread."""

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
        self._counting = threading.Lock()
        self._transactions: set[Transaction] = set()
        """Launched and not over: between two attempts, too, when the core knows nothing of them."""
        _living.add(self)

    # ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, n_attempts: int) -> Answer:
        """Join, and wait to be accepted."""
        return self._thread.run(self._connect(n_attempts))

    async def _connect(self, n_attempts: int) -> Answer:
        shell = await self._join(n_attempts, visits=False)
        return await shell.call(WaitAccepted())

    def visit(self, n_attempts: int, holding: Holding) -> tuple[Answer, Traffic]:
        """Join as a visitor, and pull what the group last agreed on; also how many bytes came."""
        shell = self._thread.run(self._join(n_attempts, visits=True))
        return self._with_tensors(shell, shell.sync(holding, FetchShared(holding.manifest.layout)))

    async def _join(self, n_attempts: int, visits: bool) -> PeerShell:
        masters, listen = self._config.masters, self._config.listen
        places = [(master.host, master.port) for master in masters]
        shell = PeerShell(self._data_plane, self._bounds, self._config.serve_bytes_s, places, _tell)
        self._shell = shell
        try:
            port = shell.listen(listen.host, listen.port)
        except OSError as error:
            raise UsageError(f"listen (PCCL_LISTEN): cannot listen on {listen}: {in_words(error)}") from error
        foreign: dict[Address, NotOurMaster] = {}
        for attempt in range(1, n_attempts + 1):
            for place, master in enumerate(masters):
                if master in foreign:
                    continue
                # Somebody else in each attempt: the master may have heard of the last one and not yet of its end.
                self.core = Peer(self._identity(port, visits), self._limits)
                try:
                    await shell.join(self.core, place, ATTEMPT_TIMEOUT_S)
                    return shell
                except NotOurMaster as error:
                    # Another one may be ours: the port of one that died can be anybody's by now.
                    foreign[master], cause = error, str(error)
                    if len(foreign) == len(set(masters)):
                        raise ProtocolError(f"connect: {_strangers(foreign)}") from error
                except OSError as error:
                    cause = in_words(error) or f"no answer within {ATTEMPT_TIMEOUT_S:g} s"
                log.info("attempt %d of %d to reach the master at %s: %s", attempt, n_attempts, master, cause)
            if attempt < n_attempts:
                await asyncio.sleep(ATTEMPT_PAUSE_S)
        where = " or ".join(str(master) for master in masters if master not in foreign)
        raise MasterLost(
            f"connect: no master at {where} after {n_attempts} attempts, the last one: {cause}. "
            f"Start it with `pccl master`, or check the address{'; ' if foreign else ''}{_strangers(foreign)}"
        )

    def _identity(self, port: int, visits: bool) -> PeerIdentity:
        me, secret, config = PeerId(secrets.token_hex(16)), secrets.token_hex(16), self._config
        place, serves = (config.announce.host, config.announce.port or port), config.serve_bytes_s > 0
        return PeerIdentity(me, config.group, *place, config.lanes, visits, serves, len(config.masters), secret)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, request: Request) -> Answer:
        """Make a call and wait for its answer. Ctrl-C interrupts the wait."""
        assert self._shell is not None, "calls follow connect"
        try:
            return self._thread.run(self._shell.call(request))
        except LoopEnded:
            return _CLOSED

    def sync(self, holding: Holding, request: SyncShared, keep: Callable[[], Kept]) -> tuple[Answer, Traffic]:
        """Sync a state; also how many bytes of it moved. `keep` is called when it was found in step, before anything
        else happens here: visitors may have it from now on."""
        shell = self._shell
        assert shell is not None, "calls follow connect"
        self._check_alone("sync_shared_state")
        return self._with_tensors(shell, _sync(shell, holding, request, keep))

    def _with_tensors(
        self, shell: PeerShell, work: Coroutine[Any, Any, tuple[Answer, Traffic]]
    ) -> tuple[Answer, Traffic]:
        try:
            return self._thread.run(work)
        except LoopEnded:
            return _CLOSED, Traffic()
        except BaseException:
            # Ctrl-C: the tensors are the caller's again when this returns.
            with contextlib.suppress(LoopEnded):
                self._thread.run(shell.transfers.withdraw())
            raise

    @property
    def pulled(self) -> bool:
        """The latest sync wrote to its tensors, or may have."""
        return self._shell is not None and self._shell.transfers.pulled

    def call_alone(self, what: str, request: Request) -> Answer:
        """Like `call`, for one that must find no collective of ours unfinished."""
        self._check_alone(what)
        return self.call(request)

    def _check_alone(self, what: str) -> None:
        with self._counting:
            tags = sorted(transaction.order.tag for transaction in self._transactions)
        if tags:
            first = ", ".join(map(str, tags[:8]))
            raise UnfinishedCollectives(
                f"{what}: wait for all collectives first; unfinished are those with tag {first}"
            )

    def launch(self, order: Order) -> Transaction:
        """Begin a transaction; it goes on by itself. Raises what can be known to be wrong before the vote."""
        if self.core.accepted and len(self.core.ring) < 2:
            reason = "this group has no other accepted peer; admit one with update_topology"
            raise TooFewPeers(f"{order.call}: {reason}")
        transaction = Transaction(order, self)
        with self._counting:
            in_flight = sum(len(each.order.parts) for each in self._transactions)
            most = self.core.tags_max
            if in_flight + len(order.parts) > most:
                reason = f"{in_flight} in flight, {len(order.parts)} more, and the master allows {most} (tags_max)"
                raise UsageError(f"{order.call}: too many collectives: {reason}; wait for some first")
            self._transactions.add(transaction)
        try:
            transaction.begin()
        except BaseException:
            self.forget(transaction)
            raise
        return transaction

    # ── for transactions ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def offers(self) -> Offers:
        return self._data_plane.offers

    @property
    def waiting(self) -> str:
        return self.core.waiting

    @property
    def group_size(self) -> int:
        return self.core.sizes.group_size

    def submit(self, request: Collective, answered: Callable[[Answer], None]) -> None:
        """See `Peerage`."""
        shell = self._shell
        assert shell is not None, "calls follow connect"
        try:
            self._thread.submit(lambda: shell.submit(request, answered))
        except LoopEnded:
            answered(_CLOSED)

    def forget(self, transaction: Transaction) -> None:
        """See `Peerage`."""
        with self._counting:
            self._transactions.discard(transaction)

    # ── leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def leave(self, timeout_s: float) -> None:
        """Say goodbye, which takes no longer than this, and be gone."""
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


def _tell(reason: str) -> None:
    if reason:
        log.warning("%s", reason)


def _strangers(foreign: dict[Address, NotOurMaster]) -> str:
    """Who listens where a master of ours should."""
    return "; ".join(f"no master of ours at {master}: {error}" for master, error in foreign.items())


async def _sync(
    shell: PeerShell, holding: Holding, request: SyncShared, keep: Callable[[], Kept]
) -> tuple[Answer, Traffic]:
    answer, traffic = await shell.sync(holding, request)
    if isinstance(answer, InSync) and not shell.transfers.pulled:
        shell.transfers.keep(keep())
    return answer, traffic


# ── the end of the process ───────────────────────────────────────────────────────────────────────────────────────────


_living: "weakref.WeakSet[Membership]" = weakref.WeakSet()
"""Memberships that have not left yet."""


@atexit.register
def _leave_all() -> None:
    """So that the others read that a peer left, not that it broke, when a script merely ends."""
    for membership in list(_living):
        membership.leave(EXIT_GOODBYE_S)


def leave_on_sigterm() -> None:
    """From now on SIGTERM ends this process as before, but with a goodbye. Only if nobody has asked for anything else
    on SIGTERM, and only from the main thread: no other may set a handler."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> None:
    # The interrupted code below us may hold any lock, so the goodbye is said by another thread, and not waited for
    # beyond its time.
    farewell = threading.Thread(target=_leave_all, name="pccl-farewell", daemon=True)
    farewell.start()
    farewell.join(2 * EXIT_GOODBYE_S)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _begin_as_child() -> None:
    """In a forked child the memberships are the parent's: the child says no goodbye for it, and dies as it would."""
    _living.clear()
    if signal.getsignal(signal.SIGTERM) is _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_begin_as_child)
