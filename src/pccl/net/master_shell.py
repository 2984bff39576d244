"""The master's shell: control connections in, messages to the core, its effects out.

Owns the listening socket and the number of every connection. Must not know why the core sends or closes anything.
"""

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, assert_never

from pccl.core.effects.both import Note, Tick
from pccl.core.effects.master import (
    Close,
    Closed,
    DialBack,
    DialledBack,
    Exceeded,
    MasterEffect,
    MasterEvent,
    Received,
    Revoked,
    Send,
)
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.to_master import Join, Resume, ToMaster
from pccl.core.names import clean
from pccl.core.rights import origin_of, without_secret
from pccl.errors import UsageError
from pccl.logs import Teller
from pccl.net import handshake, sockets
from pccl.net.bounds import Bounds, raise_descriptor_limit
from pccl.net.budgets import Budgets, Kept
from pccl.net.connection import MasterEnd, MasterSide
from pccl.net.dialling import Dialler
from pccl.net.driver import Core, Driver
from pccl.net.listening import Listener, Strangers
from pccl.net.rates import Allowance
from pccl.net.turns import Turns
from pccl.security import audit, identity
from pccl.security.control import Bearer, Doorway
from pccl.types import PeerId
from pccl.wire.codec import decode_to_master, encode
from pccl.wire.framing import WireError

log = logging.getLogger("pccl.master")


REVOKED_S = 1.0
"""How often it is looked whether tokens were revoked: a look is one `stat`."""


class MasterCore(Core[MasterEvent, MasterEffect], Protocol):
    """What decides here, what becomes of an event at which it has raised, and whose connections are members'."""

    def contain(self, event: MasterEvent, now: float) -> list[MasterEffect]: ...

    def is_member(self, connection: int) -> bool: ...


@dataclass(frozen=True)
class _Guest:
    """One connection."""

    end: MasterEnd
    host: str
    allowance: Allowance


class MasterShell:
    """Everything around a master's core. Lives in one event loop."""

    def __init__(
        self,
        core: MasterCore,
        bounds: Bounds,
        teller: Teller,
        on_bug: Callable[[Exception], None],
        door: Doorway | None = None,
    ) -> None:
        """`door` says which connections are let in; without one all are, and nothing is sealed."""
        self._teller = teller
        self._door = door
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._dialler = Dialler(bounds.connection_dead_s)
        self._core = core
        self._driver = self._drive(core)
        self._listener = Listener(self._connected, bounds.connection_dead_s)
        self._numbers = itertools.count(1)
        self._guests: dict[int, _Guest] = {}
        self._budgets = Budgets()
        self._known: set[int] = set()
        """Connections that the core knows and has not closed; all others are strangers, on a deadline."""
        self._strangers = Strangers(bounds.strangers_max)
        self._turns = Turns()
        self._openings: set[asyncio.Task[None]] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._unread = ""
        """Why the revoked tokens could not be looked at; said once."""
        """For tokens that were revoked."""

    def open(self, host: str, port: int) -> None:
        """Listen. Raises `OSError`."""
        raise_descriptor_limit()
        self._listener.open(host, port)
        if self._door is not None:
            self._look_for_revoked(self._door)

    def _drive(self, core: MasterCore) -> Driver[MasterEvent, MasterEffect]:
        return Driver(core, Tick(), self._carry_out, self._on_bug, core.contain)

    def start_over(self, core: MasterCore) -> None:
        """Go on with a core that knows nothing, on the same port: peers come back and report what they know."""
        self._driver.stop()
        self._core = core
        self._driver = self._drive(core)
        self._known.clear()
        for guest in list(self._guests.values()):
            guest.end.fail("the master starts over after an internal error")

    def be_born(self) -> None:
        """Let the core see the clock: from now on it can tell how old it is."""
        self._driver.post(Tick())

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return self._listener.addresses

    def stop(self) -> None:
        """Close the port and every connection at once."""
        self._driver.stop()
        self._turns.stop()
        self._listener.close()
        if self._looking is not None:
            self._looking.cancel()
        for guest in list(self._guests.values()):
            guest.end.fail("the master stops")
        self._strangers.expel_all("the master stops")

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, effect: MasterEffect) -> None:
        match effect:
            case Send(connections, message):
                body = encode(message)
                for number in connections:
                    if number in self._known:
                        self._guests[number].end.send(body)
            case Close(number):
                self._let_go(number)
            case DialBack():
                self._driver.start(self._dial_back(effect))
            case Note():
                self._teller.note(effect)
                if effect.event in audit.NOTED:
                    self._audit(lambda audit: audit.write(effect.event, words=effect.reason, peer=effect.peer))
            case _:
                assert_never(effect)

    def _let_go(self, number: int) -> None:
        if number in self._known:
            self._known.remove(number)
            # It may take its time to read our last message: on a deadline and within bounds, like any stranger.
            guest = self._guests[number]
            guest.end.close()
            self._strangers.add(number, guest.end.fail, guest.host)

    async def _dial_back(self, effect: DialBack) -> MasterEvent:
        """Dial as a neighbour would; the observer knows the nonce."""
        began, cause = self._loop.time(), ""
        try:
            async with asyncio.timeout(effect.timeout_s):
                sock = await self._dialler.connect(effect.host, effect.port, effect.timeout_s)
                with sock:
                    reply = await handshake.dial(
                        sock, LaneHello("doctor", PeerId("master"), PeerId(effect.nonce), 0, 0)
                    )
                cause = "" if reply.accepted else f"another peer answers there: {reply.reason}"
        except TimeoutError:
            cause = f"no answer within {effect.timeout_s:g} s"
        except OSError as error:
            cause = sockets.in_words(error)
        except WireError as error:
            cause = f"what answers there is no peer: {error}"
        return DialledBack(effect.connection, effect.host, cause, self._loop.time() - began)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _connected(self, sock: socket.socket, host: str) -> None:
        number = next(self._numbers)
        side = MasterSide(
            frame=partial(self._frame, number),
            closed=partial(self._closed, number),
            kept=self._kept,
            is_member=lambda: self._core.is_member(number),
            turn=lambda step: self._turns.ask(number, self._line(number), step),
            paid=lambda step: self._turns.pay(number, self._line(number), step),
        )
        end = MasterEnd(side, self._door.guard() if self._door is not None else None)
        self._guests[number] = _Guest(end, host, Allowance(self._loop.time()))
        self._strangers.add(number, end.fail, host)
        opening = asyncio.get_running_loop().create_task(self._attach(number, end, sock))
        # One that is given up before its first step never looks at its socket.
        opening.add_done_callback(lambda task: sock.close() if task.cancelled() else None)
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)

    def _line(self, number: int) -> str:
        """In which this connection waits for its turn. Those that have shown a token are not in the way of others of
        the same address."""
        guest = self._guests[number]
        return origin_of(guest.host) + (f" {guest.end.bearer.name}" if guest.end.bearer is not None else "")

    async def _attach(self, number: int, end: MasterEnd, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: end, sock)
        except OSError as error:
            sock.close()
            self._closed(number, sockets.in_words(error))
        except asyncio.CancelledError:
            sock.close()
            raise

    def _frame(self, number: int, body: bytes) -> float:
        """A frame has come; in how many seconds the next one may."""
        guest = self._guests[number]
        try:
            message = decode_to_master(body)
        except WireError as error:
            guest.end.fail(str(error))
            return 0.0
        if self._door is not None and isinstance(message, Join | Resume) and not identity.fits(message.me):
            guest.end.fail("its id is not that of its secret")
            return 0.0
        if self._strangers.remove(number):
            self._known.add(number)
            self._turns.refund(number)
            if guest.end.bearer is not None:
                self._audited_guest(guest, guest.end.bearer, message)
        now = self._loop.time()
        pause_s = guest.allowance.spend(message, now)
        if pause_s and (how := guest.allowance.exceeded(now)):
            self._driver.post(Exceeded(number, how))
            return pause_s
        bearer = guest.end.bearer
        rights = without_secret(guest.host) if bearer is None else bearer.rights
        self._driver.post(Received(number, message, guest.host, time.time(), rights))
        return pause_s

    def _kept(self, nbytes: int) -> None:
        """So many bytes more may be in memory for connections that do not read, or that send too much at once."""
        if self._budgets.add(nbytes):
            is_member = self._core.is_member
            kept = [Kept(number, is_member(number), guest.end.kept_bytes) for number, guest in self._guests.items()]
            for each in self._budgets.excess(kept):
                kind = "members" if each.member else "connections that are no members"
                self._guests[each.connection].end.fail(
                    f"{each.nbytes:,} bytes were kept for it, and there was no room for that with those of all {kind}"
                )

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look_for_revoked(self, door: Doorway) -> None:
        """Connections whose tokens were revoked since end now. Looked at again whatever happens here: a ledger that
        cannot be read for a moment must not make the revocations that follow worthless."""
        self._looking = self._loop.call_later(REVOKED_S, self._look_for_revoked, door)
        try:
            for number, guest in list(self._guests.items()):
                bearer = guest.end.bearer
                if bearer is not None and number in self._known and (why := door.ended(bearer)):
                    self._driver.post(Revoked(number, why))
        except UsageError as error:
            if str(error) != self._unread:
                log.error("which tokens were revoked since is not known: %s", error)
            self._unread = str(error)
        else:
            self._unread = ""

    def _audited_guest(self, guest: _Guest, bearer: Bearer, message: ToMaster) -> None:
        me = message.me if isinstance(message, Join | Resume) else None
        who = {} if me is None else {"peer": me.peer, "name": clean(me.label.name)}
        facts = {"role": bearer.role, "host": guest.host, **who}
        self._audit(lambda audit: audit.came(bearer.kind, bearer.name, type(message).__name__, **facts))

    def _audit(self, write: Callable[[audit.Audit], None]) -> None:
        if self._door is None:
            return
        try:
            write(self._door.audit)
        except OSError as error:  # A full disk must not end a run.
            log.error("the audit log cannot be written: %s", sockets.in_words(error))

    def _closed(self, number: int, cause: str) -> None:
        guest = self._guests.pop(number, None)
        if self._door is not None and guest is not None and not guest.end.proved:
            bearer = guest.end.bearer
            with suppress(OSError):  # Strangers: their refusals are no reason for a line in another log.
                self._door.audit.refused(guest.host, cause, **({bearer.kind: bearer.name} if bearer else {}))
        self._strangers.remove(number)
        self._turns.forget(number)
        if number in self._known:
            self._known.remove(number)
            self._driver.post(Closed(number, cause))
        else:
            log.debug("connection %d, which the run does not know, ended: %s", number, cause)
