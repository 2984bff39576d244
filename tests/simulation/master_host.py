"""The master's process: its core and the control connections of all peers.

Owns what the driver of a real master owns, and lets the checkers see what goes in and out.
"""

from typing import TYPE_CHECKING, Any

from pccl.core.effects import Close, Closed, MasterEvent, Note, Received, Send
from pccl.core.master import Master
from pccl.wire.codec import decode_to_master, encode
from pccl.wire.framing import TO_MASTER_FRAME_MAX, FrameReader, frame
from tests.simulation.host import Host
from tests.simulation.network import Connection
from tests.simulation.trace import tell

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre

RUN = "simulation"


class MasterHost(Host):
    """The one master of a run."""

    def __init__(self, theatre: "Theatre") -> None:
        self.core = Master(RUN, theatre.plan.master_limits)
        super().__init__(theatre.scheduler, self.core, "master")
        self.theatre = theatre
        self._connections: dict[int, Connection] = {}
        self._numbers = 0

    def connected(self, connection: Connection, address: str) -> int:
        """A peer has dialled the master; the number of its connection."""
        self._numbers += 1
        number = self._numbers
        self._connections[number] = connection
        reader = FrameReader(TO_MASTER_FRAME_MAX)

        def arrived(data: bytes) -> None:
            for body in reader.feed(data):
                self.post(self._received, number, body, address)

        connection.attach(1, arrived, lambda cause: self.post(self._closed, number, cause))
        return number

    def _received(self, number: int, body: bytes, address: str) -> None:
        if number in self._connections:
            self.handle(Received(number, decode_to_master(body), address))

    def _closed(self, number: int, cause: str) -> None:
        if self._connections.pop(number, None) is not None:
            self.handle(Closed(number, cause))

    def before(self, event: MasterEvent, effects: list[Any]) -> None:
        theatre = self.theatre
        if theatre.trace.on:
            theatre.trace.line(self.scheduler.now, self.name, tell(event))
        theatre.ledger.open(event, effects)
        theatre.audience.tell("master_handles", event)
        for known, message in theatre.ledger.deliveries(effects):
            theatre.audience.tell("master_sends", known, message)
        theatre.audience.tell("master_handled", event)

    def perform(self, effect: Any) -> None:
        if self.theatre.trace.on:
            self.theatre.trace.line(self.scheduler.now, self.name, f"    → {tell(effect)}")
        match effect:
            case Send(connections, message):
                data = frame(encode(message))
                for number in connections:
                    connection = self._connections.get(number)
                    if connection is not None:
                        connection.send(1, data)
            case Close(number):
                connection = self._connections.pop(number, None)
                if connection is not None:
                    connection.close(1, "closed by the master")
            case Note():
                pass
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def crash(self) -> None:
        """The process is gone, and the kernel closes all connections."""
        if self.gone:
            return
        self.gone = True
        for connection in self._connections.values():
            connection.close(1, "connection reset")
