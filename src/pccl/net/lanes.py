"""A peer's lanes: offered, dialled, standing, lent to the data plane, closed.

Owns the one listening port of a peer and the socket of every lane. Must not know which lanes are wanted, or why.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from pccl.core.effects.peer_effects import AcceptLane, Dial, PeerEffect
from pccl.core.effects.peer_events import LaneClosed, LaneDialled, LaneOffered, PeerEvent
from pccl.core.fields import Flow
from pccl.core.messages.lanes import LaneAnswer
from pccl.dataplane.connection import Connection
from pccl.dataplane.leftovers import Leftovers
from pccl.logs import Teller
from pccl.net import flows, handshake, proving, sockets
from pccl.net.bounds import Bounds
from pccl.net.dialling import Dialler
from pccl.net.driver import Driver
from pccl.net.flows import Counters
from pccl.net.listening import Listener, Strangers
from pccl.net.pacing import Pacing
from pccl.net.proving import Keys, LaneSecurity, Offer
from pccl.types import short
from pccl.wire.framing import Purpose, WireError, preamble

log = logging.getLogger("pccl.link")

LaneKey = tuple[int, int]
"""(link, lane)."""


@dataclass
class _Lane:
    connection: Connection
    sock: socket.socket
    lent: bool = False
    counted: Counters | None = None
    """What the kernel had counted when it was last lent."""
    doomed: bool = False
    """To be closed as soon as the data plane gives it back."""
    leftovers: Leftovers = field(default_factory=Leftovers)
    """Of attempts that it was lent to."""


class Lanes:
    """All lanes of one peer. Lives in one event loop; reports to the core through the driver."""

    def __init__(self, bounds: Bounds, teller: Teller | None = None) -> None:
        self._teller = teller or Teller("peer")
        self._told = 0
        """The latest link of which it was told that it could not be dialled; its lanes are all dialled at once."""
        self._driver: Driver[PeerEvent, PeerEffect] | None = None
        self._listener = Listener(self._connected, bounds.connection_dead_s)
        self._dialler = Dialler(bounds.connection_dead_s)
        self._numbers = itertools.count(1)
        self._strangers = Strangers(bounds.strangers_max)
        self._offers: dict[int, Offer] = {}
        self._dials: dict[LaneKey, asyncio.Task[None]] = {}
        self._lanes: dict[LaneKey, _Lane] = {}
        self._congestion_control = bounds.uplink.congestion_control
        self._pacing = Pacing(bounds.uplink.max_upload_mbps)
        self._security: LaneSecurity | None = None
        self._keys = Keys()

    def listen(self, host: str, port: int) -> int:
        """Open the listening port; the port that it became. Raises `OSError`."""
        self._listener.open(host, port)
        return self._listener.port

    def secure(self, security: LaneSecurity) -> None:
        """Lanes are proved from now on, and no others taken."""
        self._security = security

    def report_to(self, driver: Driver[PeerEvent, PeerEffect] | None) -> None:
        """From now on; without a driver, every lane that is offered is closed."""
        self._driver = driver

    def stop(self) -> None:
        """Close everything; lanes that are lent are closed when they come back."""
        self._listener.close()
        self._strangers.expel_all("this peer stops")
        for number in list(self._offers):
            self._offers.pop(number).sock.close()
        for key in [*self._dials, *self._lanes]:
            self.close(key)
        self._driver = None

    # ── dialled by us ────────────────────────────────────────────────────────────────────────────────────────────────

    def dial(self, effect: Dial) -> None:
        if self._driver is not None:
            key = (effect.hello.link, effect.hello.lane)
            self._dials[key] = self._driver.start(self._dial(key, effect))

    async def _dial(self, key: LaneKey, effect: Dial) -> PeerEvent:
        where = f"{effect.host}:{effect.port}"
        try:
            async with asyncio.timeout(effect.timeout_s):
                sock, connection = await self._handshake(effect)
        except TimeoutError:
            return self._dial_failed(effect, f"{where} did not answer within {effect.timeout_s:g} s")
        except OSError as error:
            return self._dial_failed(effect, f"{where}: {sockets.in_words(error)}")
        except WireError as error:
            return self._dial_failed(effect, f"{where}: {error}")
        finally:
            if self._dials.get(key) is asyncio.current_task():
                del self._dials[key]
        self._stand(key, sock, connection)
        return LaneDialled(*key, sockets.round_trip_us(sock))

    def _dial_failed(self, effect: Dial, cause: str) -> PeerEvent:
        link, peer = effect.hello.link, effect.hello.receiver
        if link > self._told:
            self._told = link
            sentence = f"a neighbour cannot be dialled ({short(peer)}): {cause}"
            self._teller.tell("link", logging.WARNING, "dial failed", sentence, peer=peer)
        return LaneClosed(link, effect.hello.lane, cause)

    async def _handshake(self, effect: Dial) -> tuple[socket.socket, Connection]:
        sock = await self._dialler.connect(effect.host, effect.port, effect.timeout_s)
        connection: Connection = sock
        try:
            if self._security is None:
                reply = await handshake.dial(sock, effect.hello)
            else:
                connection, reply = await proving.dial(sock, effect, self._security)
            if not reply.accepted:
                raise WireError(f"refused by the peer there: {reply.reason}")
        except BaseException:  # Also when cancelled: this is the only reference to the socket.
            sock.close()
            raise
        return sock, connection

    # ── offered to us ────────────────────────────────────────────────────────────────────────────────────────────────

    def _connected(self, sock: socket.socket, host: str) -> None:
        number = next(self._numbers)
        greeting = asyncio.get_running_loop().create_task(self._greet(number, sock, host))
        # A task that is given up before its first step never looks at its socket.
        greeting.add_done_callback(lambda task: sock.close() if task.cancelled() else None)
        self._strangers.add(number, lambda cause: greeting.cancel(), host)

    async def _greet(self, number: int, sock: socket.socket, host: str) -> None:
        try:
            offer = await self._read_offer(sock)
        except (OSError, WireError) as error:
            log.debug("a connection from %s is not a lane: %s", host, error)
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            self._offer(number, offer)
        finally:
            self._strangers.remove(number)

    async def _read_offer(self, sock: socket.socket) -> Offer:
        if self._security is not None:
            return await proving.read_hello(sock, self._keys, self._security)
        return Offer(sock, sock, await handshake.read_hello(sock))

    def _offer(self, number: int, offer: Offer) -> None:
        if self._driver is None:
            offer.sock.close()
            return
        self._offers[number] = offer
        self._driver.post(LaneOffered(number, offer.hello))

    def expect(self, link: int, key: bytes) -> None:
        """Offers of lanes of this link must prove this key from now on; there are none any more if it is empty."""
        self._keys.expect(link, key)

    def accept(self, effect: AcceptLane) -> None:
        offer = self._offers.pop(effect.offer)
        key = (effect.link, effect.lane)
        try:
            self._answer(offer, LaneAnswer(True, proof=offer.proof))
        except OSError as error:
            offer.sock.close()
            self._report(LaneClosed(*key, f"it broke while it was accepted: {sockets.in_words(error)}"))
        else:
            self._stand(key, offer.sock, offer.connection)

    def refuse(self, number: int, reason: str) -> None:
        offer = self._offers.pop(number)
        with suppress(OSError):  # It went by itself.
            self._answer(offer, LaneAnswer(False, reason, offer.proof))
        offer.sock.close()

    def _answer(self, offer: Offer, reply: LaneAnswer) -> None:
        """A secured listener has sent its preamble before."""
        handshake.answer(offer.connection, reply, preamble(Purpose.LANE) if self._security is None else b"")

    # ── standing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, key: LaneKey) -> None:
        """Close a lane that stands or is being dialled, if it is there at all."""
        dialling = self._dials.pop(key, None)
        if dialling is not None:
            dialling.cancel()
        lane = self._lanes.get(key)
        if lane is None:
            return
        if lane.lent:
            # The data plane may be reading from it: closing would free its descriptor's number for something else.
            lane.doomed = True
            with suppress(OSError):  # Broken already.
                lane.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._forget(key)

    def lend(self, keys: Iterable[LaneKey], sends: bool = True) -> list[Connection] | None:
        """The connections of these lanes, not watched by us from now on; None when one of them is gone. `sends`: more
        than answers goes out on them."""
        lanes = {key: self._lanes.get(key) for key in keys}
        standing = [lane for lane in lanes.values() if lane is not None and not lane.doomed]
        if len(standing) != len(lanes):
            return None
        if sends:
            self._pacing.lend({key: lane.sock for key, lane in zip(lanes, standing, strict=True)})
        for lane in standing:
            self._unwatch(lane)
            lane.lent, lane.counted = True, flows.read(lane.sock)
        return [lane.connection for lane in standing]

    def hand_over(self, key: LaneKey) -> Connection | None:
        """The connection of a lane that belongs to the caller from now on; None when it is gone."""
        lane = self._lanes.pop(key, None)
        if lane is None:
            return None
        self._unwatch(lane)
        self._pacing.carry_parcels(key, lane.sock)
        return lane.connection

    def flow(self, keys: Iterable[LaneKey]) -> Flow:
        """What went over these lanes since they were lent."""
        lent = [lane for key in keys if (lane := self._lanes.get(key)) is not None and lane.lent]
        return flows.flow((lane.counted, flows.read(lane.sock)) for lane in lent)

    def give_back(self, keys: Iterable[LaneKey], broken: Iterable[LaneKey], attempt: int = 0) -> None:
        """The data plane has let go of these lanes, and some of them are of no more use. `attempt`: of a collective,
        for which they were lent."""
        keys, unusable = set(keys), set(broken)
        self._pacing.give_back(keys)
        for key in keys:
            lane = self._lanes.get(key)
            if lane is None:
                continue  # The attempt could not begin because this one was gone.
            lane.lent = False
            lane.leftovers.after(attempt)
            if lane.doomed or key in unusable:
                self._forget(key)
            else:
                self._watch(key, lane)

    def _stand(self, key: LaneKey, sock: socket.socket, connection: Connection) -> None:
        self.close(key)
        sockets.tune_lane(sock, self._congestion_control)
        self._lanes[key] = _Lane(connection, sock)
        self._watch(key, self._lanes[key])

    def _forget(self, key: LaneKey) -> None:
        lane = self._lanes.pop(key)
        self._unwatch(lane)
        lane.connection.close()

    def _watch(self, key: LaneKey, lane: _Lane) -> None:
        asyncio.get_running_loop().add_reader(lane.connection.fileno(), self._readable, key)

    def _unwatch(self, lane: _Lane) -> None:
        asyncio.get_running_loop().remove_reader(lane.connection.fileno())

    def _readable(self, key: LaneKey) -> None:
        lane = self._lanes[key]
        try:
            # What the last attempt did not need is skipped as it comes: behind it the end of the lane would not be
            # seen, and its sender may wait for room.
            begun = lane.leftovers.begun(lane.connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(key, sockets.in_words(error))
            return
        if begun:
            # The previous peer has begun an attempt whose start has not reached us yet. The bytes stay where they are,
            # for the data plane; watching on would wake us for them again and again.
            self._unwatch(lane)
        else:
            self._broke(key, "the other end closed it")

    def _broke(self, key: LaneKey, cause: str) -> None:
        self._forget(key)
        self._report(LaneClosed(*key, cause))

    def _report(self, event: PeerEvent) -> None:
        if self._driver is not None:
            self._driver.post(event)
