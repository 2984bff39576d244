"""A peer's shell: the control connection, the lanes and the calls around a peer's core.

Owns call numbers and the lending of lanes to the data plane. Must not know why the core asks for anything.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

from msgspec import structs

from pccl.core.effects.both import Note, Tick
from pccl.core.effects.peer_effects import (
    AbortAttempt,
    AbortTransfer,
    AcceptLane,
    Answer,
    CarryParcels,
    CloseLane,
    CloseMaster,
    CutLane,
    Dial,
    DialMaster,
    ExpectLanes,
    Failure,
    FailureKind,
    PeerEffect,
    RefuseLane,
    Resolve,
    SendMaster,
    SendParcel,
    StartAttempt,
    StartExchange,
    StartTransfer,
)
from pccl.core.effects.peer_events import (
    Abandon,
    AttemptEnded,
    Call,
    Expire,
    FetchShared,
    FromMaster,
    MasterClosed,
    MasterUp,
    PeerEvent,
    Request,
    SayGoodbye,
    SyncShared,
)
from pccl.dataplane.offers import Traffic
from pccl.dataplane.plane import DataPlane
from pccl.dataplane.state.manifest import Holding
from pccl.logs import Teller
from pccl.net.bounds import Bounds
from pccl.net.control import Addresses, Control, NotOurMaster, Place
from pccl.net.dialling import Dialler
from pccl.net.driver import Core, Driver
from pccl.net.express import Express
from pccl.net.flight import FlightRecorder
from pccl.net.lanes import Lanes
from pccl.net.proving import LaneSecurity
from pccl.net.sockets import in_words
from pccl.net.transfers import Transfers
from pccl.net.watching import watchers
from pccl.security.control import MakeGuard
from pccl.wire.codec import decode_to_peer, encode
from pccl.wire.framing import WireError


class PeerShell:
    """Everything around a peer's core. Lives in one event loop."""

    def __init__(
        self,
        data_plane: DataPlane,
        bounds: Bounds,
        serve_bytes_s: float,
        master: Place,
        teller: Teller,
        make_guard: MakeGuard | None = None,
    ) -> None:
        self._data_plane = data_plane
        self._teller = teller
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes(bounds, teller)
        self._express = Express(data_plane, self._post)
        self.transfers = Transfers(self._lanes, data_plane.stall_s, serve_bytes_s, self._post, teller)
        """Where a call leaves the state that it syncs."""
        # A master that has moved is found by the next dial: its name is looked up each time.
        dialler = Dialler(bounds.connection_dead_s, name_kept_s=0.0)
        self._control = Control(master, dialler, self._frame, self._closed, make_guard)
        self._driver: Driver[PeerEvent, PeerEffect] | None = None
        self._dial: asyncio.Task[None] | None = None
        """Of a master, in place of one that was lost."""
        self._numbers = itertools.count(1)
        self._calls: dict[int, Callable[[Answer], None]] = {}
        self.flights: FlightRecorder | None = None
        """Where its collectives are recorded."""
        self._attempts: dict[tuple[int, int], StartAttempt] = {}
        self._stopped = False

    # ── for the communicator ─────────────────────────────────────────────────────────────────────────────────────────

    def secure_lanes(self, security: LaneSecurity) -> None:
        """Lanes are proved from now on, and no others taken; before the port is opened."""
        self._lanes.secure(security)

    def listen(self, host: str, port: int) -> int:
        """Open the port for lanes; the port that it became. Raises `OSError`."""
        chosen = self._lanes.listen(host, port)
        for watcher in watchers:
            watcher.listening(chosen)
        return chosen

    @property
    def addresses(self) -> Addresses:
        """Those behind the master's name."""
        return self._control.addresses

    async def join(self, core: Core[PeerEvent, PeerEffect], timeout_s: float) -> None:
        """Connect to the master and let the core send, which it does at once: its first message travels with our
        preamble. Raises `OSError` (try again, maybe) or `NotOurMaster`; then the core is of no more use."""
        async with asyncio.timeout(timeout_s):
            end = await self._control.open(timeout_s)
            self._driver = Driver(core, Tick(), self._carry_out_watched, self._bug)
            self._lanes.report_to(self._driver)
            self._driver.post(MasterUp())
            try:
                refusal = await end.greeted
            except BaseException:
                self._forget(self._driver)
                raise
        if refusal:
            self._forget(self._driver)
            raise NotOurMaster(refusal)

    def _forget(self, driver: Driver[PeerEvent, PeerEffect]) -> None:
        """This connection leads to no master of ours."""
        self._driver = None
        self._lanes.report_to(None)
        driver.stop()
        self._control.stop("given up")

    async def _dial_master(self, dial: DialMaster) -> PeerEvent:
        try:
            await self._control.open_again(dial.timeout_s)
        except OSError as error:
            return MasterClosed(in_words(error) or f"no answer within {dial.timeout_s:g} s")
        return MasterUp()

    def submit(self, request: Request, answered: Callable[[Answer], None]) -> int:
        """Make a call; `answered` is called in the loop's thread, exactly once. The call's number."""
        number = next(self._numbers)
        if self._driver is None or self._stopped:
            answered(Failure(FailureKind.CLOSED, "this peer has left the run"))
            return number
        self._calls[number] = answered
        if self.flights is not None:
            self.flights.called(number, request, self._loop.time())
        self._driver.post(Call(number, request))
        return number

    def expire(self, calls: tuple[int, ...]) -> None:
        """The time that these calls had together is over."""
        self._post(Expire(calls))

    async def call(self, request: Request) -> Answer:
        """Make a call and wait for its answer."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        # Done already when the caller was interrupted.
        number = self.submit(request, lambda value: None if answer.done() else answer.set_result(value))
        try:
            return await answer
        except asyncio.CancelledError:
            self._post(Abandon(number))
            raise

    async def sync(self, holding: Holding, request: SyncShared | FetchShared) -> tuple[Answer, Traffic]:
        """Make this call with this state; also how many bytes of it moved. The state is offered only once the core has
        taken the call: what it refuses at once must not get into the way of a sync that is going on."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        number = self.submit(request, lambda value: None if answer.done() else answer.set_result(value))
        if answer.done():
            return answer.result(), Traffic()
        self.transfers.offer(holding)
        try:
            return await answer, self.transfers.settle()
        except asyncio.CancelledError:
            self._post(Abandon(number))
            await self.transfers.withdraw()
            raise

    async def leave(self, timeout_s: float) -> None:
        """Leave, for which master and data plane have this long, and stop."""
        try:
            if not self._stopped and self._driver is not None:
                with suppress(TimeoutError):  # If there is no answer our closed connection says the same.
                    async with asyncio.timeout(timeout_s):
                        await self.call(SayGoodbye())
                        self._close_master()
                        await self._control.faded()
        finally:
            self.stop("it was closed")

    def stop(self, cause: str) -> None:
        """Close everything now; calls that still wait fail because of this."""
        if self._stopped:
            return
        self._stopped = True
        if self._driver is not None:
            self._driver.stop()
        for tag, attempt in self._attempts:
            self._data_plane.abort(tag, attempt)
        self._data_plane.close()
        self.transfers.stop()
        self._lanes.stop()
        self._express.stop()
        self._control.stop(cause)
        for number in list(self._calls):
            self._resolve(number, Failure(FailureKind.CLOSED, f"the communicator stopped during the call: {cause}"))

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _carry_out_watched(self, effect: PeerEffect) -> None:
        for watcher in watchers:
            watcher.before(effect, self._data_plane)
        self._carry_out(effect)
        for watcher in watchers:
            watcher.after(effect, self._data_plane)

    def _carry_out(self, effect: PeerEffect) -> None:
        match effect:
            case SendMaster(message):
                self._control.send(encode(message))
            case CloseMaster():
                self._close_master()
            case DialMaster():
                assert self._driver is not None, "it wants this"
                self._dial = self._driver.start(self._dial_master(effect))
            case Resolve(call, answer):
                self._resolve(call, answer)
            case Dial():
                self._lanes.dial(effect)
            case ExpectLanes(link, key):
                self._lanes.expect(link, key)
            case AcceptLane():
                self._lanes.accept(effect)
            case RefuseLane(offer, reason):
                self._lanes.refuse(offer, reason)
            case CutLane(link, lane):
                self._lanes.close((link, lane))
            case CloseLane(link, lane):
                self._lanes.close((link, lane))
                self._express.close((link, lane))
            case StartAttempt():
                self._note_start(effect)
                self._start_attempt(effect)
            case CarryParcels(link, lane):
                self._express.carry((link, lane), self._lanes.hand_over((link, lane)))
            case SendParcel():
                self._express.send(effect)
            case StartExchange():
                self._note_start(effect)
                self._express.start(effect)
            case StartTransfer():
                self.transfers.start(effect)
            case AbortTransfer(attempt):
                self.transfers.abort(attempt)
            case AbortAttempt(tag, attempt):
                self._data_plane.abort(tag, attempt)
                self._express.abort(attempt)
            case Note():
                self._teller.note(effect)
            case _:
                assert_never(effect)

    def _note_start(self, effect: StartAttempt | StartExchange) -> None:
        if self.flights is not None:
            self.flights.started(effect.call, effect.attempt, self._loop.time())

    def _resolve(self, call: int, answer: Answer) -> None:
        if self.flights is not None:
            self.flights.ended(call, answer, self._loop.time())
        self._calls.pop(call)(answer)

    def _start_attempt(self, effect: StartAttempt) -> None:
        to_next = self._lanes.lend(effect.to_next)
        from_prev = self._lanes.lend(effect.from_prev, sends=False)
        self._attempts[effect.tag, effect.attempt] = effect
        if to_next is None or from_prev is None:
            # One broke after the core's last look at it; those that stand are given back untouched.
            self._attempt_ended(AttemptEnded(effect.tag, effect.attempt, "a lane broke before the attempt began"))
            return

        def ended(event: AttemptEnded) -> None:
            with suppress(RuntimeError):  # The loop has ended: no call waits for this attempt any more.
                self._loop.call_soon_threadsafe(self._attempt_ended, event)

        self._data_plane.start(effect, to_next, from_prev, ended)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        effect = self._attempts.pop((event.tag, event.attempt))
        flow = self._lanes.flow(effect.to_next)
        self._lanes.give_back({*effect.to_next, *effect.from_prev}, event.broken, event.attempt)
        self._post(structs.replace(event, flow=flow))

    # ── the control connection ───────────────────────────────────────────────────────────────────────────────────────

    def _close_master(self) -> None:
        if self._dial is not None:
            self._dial.cancel()
        self._control.close()

    def _frame(self, body: bytes) -> None:
        try:
            message = decode_to_peer(body)
        except WireError as error:
            self._control.fail(f"the master sent bytes that are not a message: {error}")
            return
        self._post(FromMaster(message))

    def _closed(self, cause: str) -> None:
        self._post(MasterClosed(cause))

    def _post(self, event: PeerEvent) -> None:
        if self._driver is not None:
            self._driver.post(event)

    def _bug(self, error: Exception) -> None:
        self.transfers.stop()
        for number in list(self._calls):
            self._resolve(number, Failure(FailureKind.PROTOCOL, f"internal error of this peer: {error!r}"))
        self.stop("internal error")
