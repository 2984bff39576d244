"""Transfers of shared states: a revision and a word in place of tensors.

A puller gets the elected word from any holder that serves the same attempt over a lane that passes bytes; with none
left it fails. Holders serve until each of their pullers has said goodbye or its lanes have broken. Visitors are not
waited for so long, and whoever is to serve one must have been put in step with what is served.
"""

from typing import TYPE_CHECKING

from pccl.core.effects.peer_effects import AbortTransfer, StartTransfer
from pccl.core.effects.peer_events import TransferEnded
from tests.simulation import lanes
from tests.simulation.lanes import LaneEnd, LaneKey, returned
from tests.simulation.plane import NO_PROGRESS_S
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost


class Transfer:
    """One peer's part."""

    def __init__(self, host: "PeerHost", effect: StartTransfer) -> None:
        self.host = host
        self.effect = effect
        self.ended = False
        self.open: set[LaneKey] = {key for keys in effect.lanes for key in keys}
        """Lanes that are neither broken nor, for a holder, said goodbye on."""
        self.broken: set[LaneKey] = set()

    def ends(self) -> list[LaneEnd]:
        """The lanes lent to it that are still there."""
        keys = [key for keys in self.effect.lanes for key in keys]
        return [self.host.lanes[key] for key in keys if key in self.host.lanes]

    def lane_broke(self, end: LaneEnd, cause: str) -> None:
        """A lent lane was closed by the other end or cut."""
        self.broken.add(end.key)
        self.open.discard(end.key)
        self.host.theatre.scheduler.after(0.01, self.look)

    def look(self) -> None:
        """Is it over?"""
        if self.ended or self.host.gone:
            return
        if self.host.frozen:
            self._look_again()
        elif not self.effect.pull:
            if not self.open:
                self.end("")
        elif any(self._serves(end) for end in self.ends()):
            self.host.word = self.effect.content
            self.end("")
        elif self.open:
            self._look_again()
        else:
            self.end("no holder is left")

    def _look_again(self) -> None:
        self.host.theatre.scheduler.after(0.5, self.look)

    def _serves(self, end: LaneEnd) -> bool:
        holder = self.host.theatre.peers.get(end.other)
        if end.key not in self.open or end.connection.vanished or holder is None or holder.frozen:
            return False
        serving = holder.transfers.get(self.effect.attempt)
        return serving is not None and not serving.effect.pull and end.key in serving.open

    def hear_goodbye(self, key: LaneKey) -> None:
        """A puller needs nothing more over this lane."""
        self.open.discard(key)
        self.look()

    def hear_early(self) -> None:
        """Some pullers were done before we began."""
        self.open -= {end.key for end in self.ends() if self.effect.attempt in end.unheard}
        self.host.theatre.scheduler.after(0.01, self.look)

    def end(self, cause: str) -> None:
        """It is over; only the first end counts."""
        if self.ended or self.host.gone:
            return
        self.ended = True
        if self.effect.pull:
            self._say_goodbye()
        self.host.post(self._let_go, cause)

    def give_up(self, cause: str) -> None:
        """A visitor asks for nothing any more, or holders do not answer: something is owed on these lanes."""
        if not self.ended and not self.host.gone:
            self.broken |= self.open
            self.end(cause)

    def _say_goodbye(self) -> None:
        theatre = self.host.theatre
        for end in self.ends():
            holder = theatre.peers.get(end.other)
            # Over a lane that passes no bytes it is said, too, and never heard.
            if holder is not None and end.key in self.open - self.broken and not end.connection.vanished:
                delay_s = theatre.network.delay(self.host.distance_s + holder.distance_s)
                theatre.scheduler.after(delay_s, holder.post, _hear_goodbye, holder, end.key, self.effect.attempt)

    def _let_go(self, cause: str) -> None:
        for end in self.ends():
            if end.key in self.broken:
                end.transfer = None
                del self.host.lanes[end.key]
                end.close("broken by a transfer")
            else:
                end.transfer = None
                returned(end, bool(end.unheard))
        del self.host.transfers[self.effect.attempt]
        broken = tuple(sorted(self.broken))
        self.host.handle(TransferEnded(self.effect.attempt, cause, broken))


def _hear_goodbye(holder: "PeerHost", key: LaneKey, attempt: int) -> None:
    if attempt in holder.transfers:
        holder.transfers[attempt].hear_goodbye(key)
    elif key in holder.lanes:
        # It has not been told to begin, and never will be if the master is lost now. The next one has another number.
        end = holder.lanes[key]
        end.unheard.add(attempt)
        end.unread = end.unread or (end.part is None and end.transfer is None)


def start(host: "PeerHost", effect: StartTransfer) -> None:
    """A peer lends lanes and pulls or serves."""
    if _lacks_state(host, effect):
        _decline(host, effect)
        return
    transfer = host.transfers[effect.attempt] = Transfer(host, effect)
    for end in transfer.ends():
        end.transfer = transfer
        if not end.connection.open(end.side):
            transfer.lane_broke(end, "closed before it began")
    scheduler, plan = host.theatre.scheduler, host.theatre.plan
    if effect.pull:
        scheduler.after(host.theatre.plane.pull_s(), transfer.look)
        # A lane that passes nothing is found out by whoever waits for bytes on it. Who serves waits for no bytes,
        # except for those of a visitor.
        scheduler.after(NO_PROGRESS_S + plan.run_s, transfer.give_up, "no progress")
        return
    transfer.hear_early()
    if effect.visit:
        scheduler.after(NO_PROGRESS_S + plan.run_s, transfer.give_up, "")


def _lacks_state(host: "PeerHost", effect: StartTransfer) -> bool:
    """The state is not there, because the call that left it was interrupted."""
    if effect.pull or not effect.visit:
        return not host.offers_state and not host.hostile
    lacks = effect.content != host.synced_word and not host.hostile
    if lacks and "interrupt" not in host.theatre.plan.faults:
        raise Violation("served state", f"{host.name} shall serve {effect.content!r}, but held {host.synced_word!r}")
    return lacks


def _decline(host: "PeerHost", effect: StartTransfer) -> None:
    """The others find the lanes closed."""
    keys = tuple(key for keys in effect.lanes for key in keys)
    for key in keys:
        lanes.close(host, key)
    host.handle(TransferEnded(effect.attempt, "the shared state is not there any more", keys))


def withdraw(host: "PeerHost") -> None:
    """The call was interrupted: what works on its state ends. Visitors read another one's."""
    for attempt in _of_call(host):
        abort(host, AbortTransfer(attempt))


def works_on_state(host: "PeerHost") -> bool:
    """The transfer of its last call has not ended."""
    return bool(_of_call(host))


def _of_call(host: "PeerHost") -> list[int]:
    effects = [transfer.effect for transfer in host.transfers.values()]
    return [effect.attempt for effect in effects if effect.pull or not effect.visit]


def abort(host: "PeerHost", effect: AbortTransfer) -> None:
    """A peer wants its transfer to stop. Lanes on which something is owed are of no more use: to a puller all, or, if
    it has not got beyond the manifest, those of the first holder."""
    transfer = host.transfers[effect.attempt]
    early = transfer.effect.pull and effect.attempt % 2 == 1
    transfer.broken |= set(transfer.effect.lanes[0]) if early else transfer.open
    host.theatre.scheduler.after(0.05, transfer.end, "aborted")
