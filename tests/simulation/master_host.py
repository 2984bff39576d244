"""The master's process: its core and the control connections of all peers.

Owns what the driver of a real master owns, and lets the checkers see what goes in and out.
"""

import functools
import hmac
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pccl.core.effects.both import Note
from pccl.core.effects.master import Close, Closed, DialBack, DialledBack, MasterEffect, MasterEvent, Received, Send
from pccl.core.master.master import Master
from pccl.core.master.tickets import NO_KEYS, Keys
from pccl.core.messages.to_peer import Resumed, Topology
from pccl.wire.codec import decode_to_master, encode
from pccl.wire.framing import TO_MASTER_FRAME_MAX, FrameReader, frame
from tests.simulation import lanes
from tests.simulation.host import Host
from tests.simulation.ledger import Known
from tests.simulation.network import Connection
from tests.simulation.trace import tell

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre

NOTICED_S = 12.0
"""Kernels probe idle connections every few seconds, and a machine that has been started anew answers with a reset."""

RUN = "simulation"


def sign(statement: bytes) -> bytes:
    """By the secret that all masters of a secured run have, and no peer."""
    return hmac.digest(b"of masters alone", statement, "sha256")[:16]


class MasterHost(Host):
    """One master of a run; the next one knows nothing of it."""

    def __init__(self, theatre: "Theatre", number: int) -> None:
        run = RUN if number == 0 else f"{RUN}-{number}"
        keys = Keys(functools.partial(lanes.key_of, run), sign) if theatre.plan.secured else NO_KEYS
        self.core = Master(run, theatre.plan.master_limits, follows=number > 0, keys=keys)
        # A run that begins anew counts from one again; what looks on here knows attempts by their numbers alone.
        self.core.roster.number = number * 1_000_000
        super().__init__(theatre.scheduler, self.core, "master")
        self.theatre = theatre
        self.number = number
        self.known: dict[int, Known] = {}
        """What the ledger holds of those who came to it, by connection."""
        self._connections: dict[int, Connection] = {}

    @property
    def leads(self) -> bool:
        """Somebody is on its roster."""
        return not self.gone and any(known.topology is not None for known in self.known.values())

    def connected(self, connection: Connection, address: str) -> int:
        """A peer has dialled the master; the number of its connection."""
        number = self.theatre.next_connection()
        self._connections[number] = connection
        reader = FrameReader(TO_MASTER_FRAME_MAX)

        def arrived(data: bytes) -> None:
            for body in reader.feed(data):
                self.post(self._received, number, body, address)

        connection.attach(1, arrived, lambda cause: self.post(self._closed, number, cause))
        return number

    def _received(self, number: int, body: bytes, address: str) -> None:
        if number in self._connections:
            self.handle(Received(number, decode_to_master(body), address, rights=self.theatre.rights_of(number)))

    def _closed(self, number: int, cause: str) -> None:
        if self._connections.pop(number, None) is not None:
            self.handle(Closed(number, cause))

    def before(self, event: MasterEvent, effects: list[Any]) -> None:
        theatre = self.theatre
        if theatre.trace.on:
            theatre.trace.line(self.scheduler.now, self.name, tell(event))
        said = [effect.message for effect in effects if isinstance(effect, Send)]
        topologies = any(isinstance(message, Topology) for message in said)
        if topologies and not self.leads and not any(isinstance(message, Resumed) for message in said):
            theatre.run_begins()
        theatre.ledger.open(event, effects, self.scheduler.now)
        self._tell("master_handles", event)
        self._tell("master_decides", event, effects)

    def after(self, event: MasterEvent) -> None:
        self._tell("master_handled", event)

    def _tell(self, hook: str, *what: Any) -> None:
        self.theatre.audience.tell(hook, *what)

    def perform(self, effect: Any) -> None:
        if self.theatre.trace.on:
            self.theatre.trace.line(self.scheduler.now, self.name, f"    → {tell(effect)}")
        match effect:
            case Send(connections):
                for place, number in enumerate(connections):
                    # It may die between any two receivers, too; whether it gets to the first one was asked before.
                    if place and not self.lives_on():
                        break
                    self._send(structs.replace(effect, connections=(number,)))
            case Close(number):
                self._witness(effect)
                connection = self._connections.pop(number, None)
                if connection is not None:
                    connection.close(1, "closed by the master")
            case DialBack(connection, host):
                done = DialledBack(connection, host, "", 0.1)
                self.scheduler.after(0.1, self.post, self.handle, done)
            case Note():
                pass
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def _send(self, effect: Send) -> None:
        """To one connection."""
        self._witness(effect)
        (number,) = effect.connections
        if effect.again:
            self._tell("master_sends_again", self.known[number], effect.message)
        connection = self._connections.get(number)
        if connection is not None:
            connection.send(1, frame(encode(effect.message)))

    def _witness(self, effect: MasterEffect) -> None:
        for known, message in self.theatre.ledger.deliveries([effect]):
            self._tell("master_sends", known, message)

    def crash(self) -> None:
        """The process is gone, and the kernel closes all connections."""
        if self.gone:
            return
        self.gone = True
        self.theatre.master_gone(self)
        for connection in self._connections.values():
            connection.crash(1)

    def lose_power(self) -> None:
        """The machine is gone, and what is on its way with it. Others find out when their kernels next ask it."""
        if self.gone:
            return
        self.gone = True
        self.theatre.power_lost_at = self.scheduler.now
        self.theatre.master_gone(self)
        for connection in self._connections.values():
            connection.vanish((0, 1))
            self.scheduler.after(self.theatre.random.uniform(0.0, NOTICED_S), connection.cut, "connection reset")

    def connection(self, number: int) -> Connection | None:
        """The connection with this number, while it stands."""
        return self._connections.get(number)
