"""What exists of a peer from `connect` to `close`.

Owns the control thread of one membership, the calls into it, and its goodbye. The control thread knows this object, but
not the `Communicator`, so that an abandoned `Communicator` is collected. Must not know how anything is decided or sent.
"""

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from pccl.api.account import Account
from pccl.api.flight_signal import write_on_sigusr1
from pccl.api.goodbye import expect, leave_on_sigterm, living
from pccl.api.retries import Retries, Retry
from pccl.api.transaction import Order, Transaction
from pccl.called import machine
from pccl.config import PeerConfig
from pccl.core.effects.peer_effects import Answer, Failure, FailureKind, InSync
from pccl.core.effects.peer_events import CallCollective, FetchShared, Request, SyncShared, WaitAccepted
from pccl.core.fields import Identity, Label, Party
from pccl.core.peer.peer import Peer
from pccl.core.text import ALONE
from pccl.dataplane.offers import Offers, Traffic
from pccl.dataplane.plane import DataPlane
from pccl.dataplane.state.manifest import Holding
from pccl.errors import MasterLost, ProtocolError, TooFewPeers, UnfinishedCollectives, UsageError
from pccl.net import sockets
from pccl.net.bounds import peer_bounds
from pccl.net.control import NotOurMaster
from pccl.net.peer_shell import PeerShell
from pccl.net.proving import LaneSecurity
from pccl.net.sockets import in_words
from pccl.net.thread import LoopEnded, LoopThread
from pccl.net.transfers import Kept
from pccl.release import release
from pccl.security import identity, tokens
from pccl.security.entrance import make_guard
from pccl.types import Awaited, ReduceInfo

_PROCESS = secrets.token_hex(8)
"""Of this process and those that are forked from it: together with a process number, of one process alone."""

ATTEMPT_PAUSE_S = 1.0
"""Between two attempts to connect, like PCCL: peers are often started before their master."""

ATTEMPT_TIMEOUT_S = 10.0
"""One attempt: a few round trips, with room for lost segments."""

SLOW_S = 2.0
"""A master that is there answers in a round trip: a person who waits reads by then that this one does not."""

GOODBYE_S = 3.0
"""Leaving waits this long for running collectives to stop and for the master to receive the goodbye; then the
connection is closed, which means the same."""

GATHER_S = 0.1
"""Retries of one event are told together: their outcomes come one after the other within this time."""

_CLOSED = Failure(FailureKind.CLOSED, "this Communicator was closed; build a new one to go on")


def make_data_plane(name: str, stall_s: float) -> DataPlane:
    """Imported when chosen: a user of the one need not have what the other needs."""
    if name == "reference":
        from pccl.dataplane.reference import ReferencePlane

        return ReferencePlane(stall_s)
    from pccl.dataplane.native import NativePlane

    return NativePlane(stall_s)


class Membership:
    """A peer's connection to a run. All methods may be called by any thread."""

    core: Peer

    def __init__(self, config: PeerConfig, data_plane: DataPlane, lane_security: LaneSecurity | None = None) -> None:
        self._config = config
        self._lane_security = lane_security
        self._make_guard = make_guard(config.token, config.certificates)
        self._party_key = identity.party_of(config.party, tokens.parse(config.token).pin if config.token else b"")
        sockets.check_uplink(config.uplink)
        self._bounds = replace(peer_bounds(config.lanes, config.connection_dead_s), uplink=config.uplink)
        # A lane that is offered too early costs a descriptor, like a stranger.
        early_offers_max = min(config.limits.early_offers_max, self._bounds.strangers_max)
        self._limits = structs.replace(config.limits, early_offers_max=early_offers_max)
        self._data_plane = data_plane
        self.account = Account(config)
        self._shell: PeerShell | None = None
        self._thread = LoopThread("pccl-control", daemon=True)
        self._leaving = threading.Lock()
        self._farewells: list[asyncio.Future[None]] = []
        """Kept: the loop itself would let the collector have them."""
        self._counting = threading.Lock()
        self._transactions: set[Transaction] = set()
        """Launched and not over: between two attempts, too, when the core knows nothing of them."""
        self._retries = Retries(
            lambda tell: self._thread.post(lambda: asyncio.get_running_loop().call_later(GATHER_S, tell)),
            self.account.teller,
        )
        expect(self, self._thread)

    # ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, n_attempts: int, sigterm: bool, sigusr1: bool) -> Answer:
        """Join, and wait to be accepted; from then on SIGTERM ends the process with a goodbye, and SIGUSR1 writes the
        flight record, if that is wanted."""
        answer = self._thread.run(self._connect(n_attempts))
        if not isinstance(answer, Failure):
            self.account.tell_accepted()
            if sigterm:
                leave_on_sigterm()
            if sigusr1:
                write_on_sigusr1()
        return answer

    async def _connect(self, n_attempts: int) -> Answer:
        shell = await self._join(n_attempts, visits=False)
        return await shell.call(WaitAccepted())

    def visit(self, n_attempts: int, holding: Holding) -> tuple[Answer, Traffic]:
        """Join as a visitor, and pull what the group last agreed on; also how many bytes came."""
        shell = self._thread.run(self._join(n_attempts, visits=True))
        return self._with_tensors(shell, shell.sync(holding, FetchShared(holding.manifest.layout)))

    async def _join(self, n_attempts: int, visits: bool) -> PeerShell:
        master, listen = self._config.master, self._config.listen
        self.account.tell_unsecured()
        place = (master.host, master.port)
        shell = PeerShell(
            self._data_plane, self._bounds, self._config.serve_bytes_s, place, self.account.teller, self._make_guard
        )
        self._shell = shell
        if self._lane_security is not None:
            shell.secure_lanes(self._lane_security)
        try:
            port = shell.listen(listen.host, listen.port)
        except OSError as error:
            raise UsageError(f"listen (PCCL_LISTEN): cannot listen on {listen}: {in_words(error)}") from error
        attempt, strange, told = 1, 0, ""
        while True:
            # Another identity in each attempt: the master may have received the last one and not yet its end.
            self.core = Peer(self._identity(port, visits), self._limits)
            shell.flights = self.account.begin(self.core)
            sentence = f"the master at {master} has not answered for {SLOW_S:g} s (attempt {attempt} of {n_attempts})"
            tell = functools.partial(self.account.teller.tell, "peer", logging.WARNING, "no master", sentence)
            slow = asyncio.get_running_loop().call_later(SLOW_S, tell)
            try:
                self.account.tell_where(port)
                await shell.join(self.core, ATTEMPT_TIMEOUT_S)
                return shell
            except NotOurMaster as error:
                cause = str(error)
                if not shell.addresses.left:
                    raise ProtocolError(f"connect: no master of ours at {master}: {cause}") from error
                if shell.addresses.strange > strange:
                    strange = shell.addresses.strange
                    continue  # The name has other addresses.
            except OSError as error:
                cause = in_words(error) or f"no answer within {ATTEMPT_TIMEOUT_S:g} s"
            finally:
                slow.cancel()
            sentence = f"attempt {attempt} of {n_attempts} to reach the master at {master}: {cause}"
            # A minute of the same line would hide what matters: a wait twice as long is news.
            news = cause != told or attempt.bit_count() == 1 or attempt == n_attempts
            self.account.teller.tell("peer", logging.WARNING if news else logging.INFO, "no master", sentence)
            told = cause
            if attempt == n_attempts:
                raise MasterLost(
                    f"connect: no master at {master} after {n_attempts} attempts, the last one: {cause}. "
                    "Start it with `pccl master`, or check the address"
                )
            attempt += 1
            await asyncio.sleep(ATTEMPT_PAUSE_S)

    def _identity(self, port: int, visits: bool) -> Identity:
        (peer, secret), config = identity.draw(), self._config
        place, serves = (config.announce.host, config.announce.port or port), config.serve_bytes_s > 0
        label = Label(config.name, machine(), os.getpid(), release(), f"{_PROCESS}{os.getpid()}")
        party = Party(config.party, config.party_size, self._party_key) if config.party else Party()
        me = Identity(peer, config.group, *place, config.lanes, visits, serves, secret, label, party=party)
        me = structs.replace(me, lanes_max=self._bounds.lanes_max, threads=config.threads)
        security = self._lane_security
        return me if security is None else structs.replace(me, pin=security.pin, lane_tls=security.lane_tls)

    def metrics(self) -> dict[str, float]:
        """See `Account`."""
        with self._counting:
            return self.account.metrics(len(self._transactions))

    def awaited(self) -> Awaited | None:
        """See `Communicator`."""
        told = self.core.awaited
        return None if told is None else Awaited(told[0], time.monotonic() - told[1])

    def told_flights(self) -> str:
        """See `Leaver`."""
        return self.account.told_flights()

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

    def launch(self, order: Order, may_be_alone: bool = False) -> Transaction:
        """Begin a transaction; it goes on by itself. Raises what can be known to be wrong before the vote; a caller
        that `may_be_alone` gets that as the outcome, like the loss of the last other peer."""
        if self.core.accepted and len(self.core.ring) < 2 and not may_be_alone:
            raise TooFewPeers(f"{order.call}: {ALONE}")
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

    def submit(self, request: CallCollective, answered: Callable[[Answer], None]) -> list[int]:
        """See `Peerage`."""
        shell, number = self._shell, list[int]()
        assert shell is not None, "calls follow connect"
        try:
            self._thread.submit(lambda: number.append(shell.submit(request, answered)))
        except LoopEnded:
            answered(_CLOSED)
        return number

    def expire(self, calls: Sequence[list[int]]) -> None:
        """See `Peerage`."""
        shell = self._shell
        assert shell is not None, "calls follow connect"
        # After the submissions, in the same thread: all have their numbers by then.
        self._thread.post(lambda: shell.expire(tuple(number for call in calls for number in call)))

    def forget(self, transaction: Transaction, outcome: ReduceInfo | BaseException | None = None) -> None:
        """See `Peerage`."""
        with self._counting:
            self._transactions.discard(transaction)
        if outcome is not None:
            order = transaction.order
            self.account.ended(order.tag, order.parts[-1].tag, outcome)

    def note_retry(self, retry: Retry) -> None:
        """See `Peerage`."""
        self._retries.add(retry)

    # ── leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def leave(self, timeout_s: float) -> None:
        """Say goodbye, which takes no longer than this, and be gone."""
        with self._leaving:
            if self not in living:
                return
            living.discard(self)
            self.account.close()
            try:
                self._thread.run(self._leave(timeout_s))
            finally:
                self._thread.stop()
            self._thread.join(timeout_s)

    def abandon(self, timeout_s: float = GOODBYE_S) -> None:
        """Leave without waiting for anything; see `Leaver`."""
        if self in living:
            living.discard(self)
            self._thread.post(lambda: self._farewells.append(asyncio.ensure_future(self._leave_and_stop(timeout_s))))

    async def _leave(self, timeout_s: float) -> None:
        if self._shell is not None:
            await self._shell.leave(timeout_s)

    async def _leave_and_stop(self, timeout_s: float) -> None:
        try:
            await self._leave(timeout_s)
        finally:
            self._thread.stop()


async def _sync(
    shell: PeerShell, holding: Holding, request: SyncShared, keep: Callable[[], Kept]
) -> tuple[Answer, Traffic]:
    answer, traffic = await shell.sync(holding, request)
    if isinstance(answer, InSync) and not shell.transfers.pulled:
        shell.transfers.keep(keep())
    return answer, traffic
