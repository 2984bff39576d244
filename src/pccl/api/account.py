"""What a peer tells of itself: who and where it is, its rounds, its numbers, its last collectives.

Owns the words and the record. Must not know how a membership comes or goes.
"""

import logging

from pccl.api.rounds import Rounds
from pccl.config import PeerConfig
from pccl.core.peer.peer import Peer, PeerStage
from pccl.errors import PCCLError
from pccl.logs import Teller
from pccl.net.flight import Flight, FlightRecorder
from pccl.net.sockets import is_loopback
from pccl.types import ReduceInfo

_TOLD_UNSECURED: set[str] = set()
"""Masters, of which it was said in this process."""

FLIGHTS_SHOWN = 3
"""Of the flight record, in the text of a failure."""


class Account:
    """Of one membership. All methods may be called by any thread."""

    core: Peer
    _flights: FlightRecorder

    def __init__(self, config: PeerConfig) -> None:
        self._config = config
        self.teller = Teller("peer", self._facts)
        self._rounds = Rounds(self.teller)

    def begin(self, core: Peer) -> FlightRecorder:
        """From now on it is about this core."""
        self.core = core
        self._flights = FlightRecorder(core.identity.peer, core.names)
        return self._flights

    def ended(self, tag: int, last_tag: int, outcome: ReduceInfo | BaseException) -> None:
        """A call is over; `last_tag` is that of its last part. A failure gets the latest of the record along."""
        self._rounds.ended(tag, outcome, self._flights.last(last_tag))
        if isinstance(outcome, PCCLError):
            outcome.add_note(_last_flights(self._flights.record()))

    def close(self) -> None:
        """Tell what is left to be told."""
        self._rounds.close()

    def tell_unsecured(self) -> None:
        """Once in a process for each master: those who read this start many peers. Not on this machine alone."""
        config, master = self._config, str(self._config.master)
        secured = config.token or config.certificates is not None
        if not secured and not is_loopback(config.master.host) and master not in _TOLD_UNSECURED:
            _TOLD_UNSECURED.add(master)
            sentence = (
                f"NOT SECURED: this peer has no token for the master at {master}, so every machine on the way can read "
                "and change what is sent, and every one that reaches a port of this run can join it; start the master "
                "with `pccl master`, and set PCCL_TOKEN_FILE here, or use the address that it prints"
            )
            self.teller.tell("peer", logging.WARNING, "not secured", sentence)

    def tell_where(self, port: int) -> None:
        """Who this peer is, and where it listens."""
        me, announce = self.core.identity, self._config.announce
        where = f", announced as {announce.host or '(as seen)'}:{me.port}" if announce.host or announce.port else ""
        sentence = f"{self.core.names.full(me.peer)} listens on port {port}{where}, master {self._config.master}"
        self.teller.tell("peer", logging.INFO, "listens", sentence)

    def tell_accepted(self) -> None:
        """It is on the roster."""
        sentence = f"{self.core.names.full(self.core.identity.peer)} is accepted: {self.place()}, run {self.core.run}"
        self.teller.tell("peer", logging.INFO, "accepted", sentence)

    def metrics(self, open_calls: int) -> dict[str, float]:
        """Flat, and numbers alone."""
        core = self.core
        me, ring = core.identity.peer, core.ring
        return {
            "pccl_epoch": float(core.epoch),
            "pccl_rank": float(ring.index(me)) if me in ring else -1.0,
            "pccl_group_peers": float(core.sizes.group_size),
            "pccl_roster_peers": float(core.sizes.global_size),
            "pccl_calls_open": float(open_calls),
            "pccl_waiting": float(bool(core.waiting)),
            **self._rounds.metrics(),
        }

    def flight_record(self) -> tuple[Flight, ...]:
        """The last collectives, the latest last."""
        return self._flights.record()

    def told_flights(self) -> str:
        """The same in lines."""
        record = "".join(f"\n  {flight}" for flight in self.flight_record())
        return f"pccl: {self.place()}; its last collectives:{record or ' none'}"

    def _facts(self) -> dict[str, object]:
        """What all lines of this peer have in common."""
        core = getattr(self, "core", None)
        if core is None:
            return {"peer_name": self._config.name}
        return {
            "run": core.run or None,
            "epoch": core.epoch or None,
            "peer": core.identity.peer,
            "peer_name": self._config.name,
        }

    def place(self) -> str:
        """Where this peer is in the run, in words."""
        core, me = self.core, self.core.identity
        master = f"master {self._config.master}"
        if core.stage is PeerStage.GONE:
            return f"out of the run, {master}"
        if not core.accepted:
            return f"{core.stage}, {master}"
        away = "" if core.stage is PeerStage.ACCEPTED else f", {core.stage}"
        rank = core.ring.index(me.peer) if me.peer in core.ring else 0
        return f"rank {rank} of {len(core.ring)} in group {me.group}, epoch {core.epoch}{away}, {master}"


def _last_flights(record: tuple[Flight, ...]) -> str:
    """What goes with a failure."""
    shown = record[-FLIGHTS_SHOWN:]
    lines = "".join(f"\n  {flight}" for flight in shown)
    return f"the last collectives of this peer ({len(record)} are in Communicator.flight_record()):{lines}"
