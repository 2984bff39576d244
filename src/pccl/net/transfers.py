"""Transfers of shared state: lanes lent to them, and the state that this peer offers or lacks.

Owns what stands between an effect and the threads that move chunks, and the bandwidth that visitors may have of us.
Must not know who was elected, or why.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pccl.core.effects.peer_effects import StartTransfer
from pccl.core.effects.peer_events import PeerEvent, TransferEnded
from pccl.dataplane.connection import Connection
from pccl.dataplane.offers import Traffic
from pccl.dataplane.state.agenda import Goal
from pccl.dataplane.state.manifest import Holding
from pccl.dataplane.state.pulling import Pulling
from pccl.dataplane.state.serving import Rate, Serving
from pccl.dataplane.state.transfer import Report, Transfer
from pccl.logs import Teller
from pccl.net.lanes import LaneKey, Lanes

Kept = Callable[[], Holding | None]
"""The state of our last sync, if there still is one."""


@dataclass
class _Running:
    transfer: Transfer
    keys: list[LaneKey]
    """Of all its lanes, in the order in which a report counts them."""
    counts: bool
    """It belongs to the call that offered the state."""
    pulls: bool
    began_at: float


class Transfers:
    """All transfers of one peer: that of its call, of which there is one at a time, and those to visitors, which go on
    beside it. Lives in one event loop."""

    def __init__(
        self, lanes: Lanes, stall_s: float, serve_bytes_s: float, report: Callable[[PeerEvent], None], teller: Teller
    ) -> None:
        """`serve_bytes_s`: what all visitors together may have; 0 for none."""
        self._teller = teller
        self._lanes = lanes
        self._stall_s = stall_s
        self._rate = Rate(serve_bytes_s) if serve_bytes_s else None
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, _Running] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._holding: Holding | None = None
        self._kept: Kept = lambda: None
        self._traffic = Traffic()
        self._pulling = False
        self._written = False
        """A pull since the last offer has put something in place."""

    @property
    def pulled(self) -> bool:
        """Since the last offer its tensors were written to, or may have been."""
        return self._pulling or self._written

    @property
    def offered(self) -> bool:
        """A call has left its state here and was not answered."""
        return self._holding is not None

    def offer(self, holding: Holding) -> None:
        """This is what we hold, before it is voted on."""
        self._holding, self._traffic, self._written = holding, Traffic(), False

    async def withdraw(self) -> None:
        """The call was interrupted: from now on nothing works on its state, though its vote stands."""
        self._holding = None
        for running in self._running.values():
            if running.counts:  # Visitors only read, and what they read is another call's.
                running.transfer.abort()
        await self._idle.wait()

    def settle(self) -> Traffic:
        """The call was answered, so it works on the state no more: how many bytes of content it moved."""
        self._holding = None
        return self._traffic

    def keep(self, kept: Kept) -> None:
        """What visitors are given from now on."""
        self._kept = kept

    def start(self, effect: StartTransfer) -> None:
        """Pull or serve; ends in `TransferEnded`."""
        holding = self._for_visitors(effect) if effect.visit and not effect.pull else self._holding
        if holding is None:
            self._decline(effect)
            return
        lent = [
            (keys, sockets) for keys in effect.lanes if (sockets := self._lanes.lend(keys, not effect.pull)) is not None
        ]
        if not lent:
            self._report(TransferEnded(effect.attempt, "every lane broke before it began"))
            return
        transfer = self._make(effect, holding, [sockets for _, sockets in lent])
        keys = [key for keys, _ in lent for key in keys]
        running = self._running[effect.attempt] = _Running(
            transfer, keys, effect.pull or not effect.visit, effect.pull, self._loop.time()
        )
        if running.counts:
            self._idle.clear()
        self._pulling = self._pulling or effect.pull
        try:
            transfer.start()
        except RuntimeError as error:  # The machine has no more threads.
            self._ended(effect.attempt, Report(str(error), tuple(range(len(keys)))))

    def _for_visitors(self, effect: StartTransfer) -> Holding | None:
        """What was agreed on, as we hashed it then: kept since, or of a call that has just been answered. Memory that
        has no owner is its user's, who may take it away after the call: visitors get none of it."""
        known = [holding for holding in (self._kept(), self._holding) if holding is not None]
        wanted = (effect.layout, effect.content)
        fitting = [each for each in known if (each.manifest.layout, each.manifest.content) == wanted]
        if not fitting or self._rate is None:
            return None
        owned = all(entry.tensor.owner is not None for entry in fitting[0].entries if entry.count)
        return fitting[0] if owned else None

    def _decline(self, effect: StartTransfer) -> None:
        """There is no state, since the call was interrupted or because it is gone: the other side finds the lanes
        closed and looks elsewhere, rather than wait for what never comes."""
        keys = tuple(key for keys in effect.lanes for key in keys)
        for key in keys:
            self._lanes.close(key)
        self._report(TransferEnded(effect.attempt, "the shared state is not there any more", keys))

    def _make(self, effect: StartTransfer, holding: Holding, holders: list[list[Connection]]) -> Transfer:
        def ended(report: Report) -> None:
            with suppress(RuntimeError):  # The loop has ended: no call waits for this any more.
                self._loop.call_soon_threadsafe(self._ended, effect.attempt, report)

        if effect.pull:
            goal = Goal(effect.layout, effect.content, effect.newcomer, effect.visit)
            return Pulling(effect.attempt, holding, goal, holders, ended, self._stall_s)
        rate = self._rate if effect.visit else None
        lanes = [lane for lanes in holders for lane in lanes]
        return Serving(effect.attempt, holding, lanes, ended, self._stall_s, rate)

    def _ended(self, attempt: int, report: Report) -> None:
        running = self._running.pop(attempt)
        if not any(each.counts for each in self._running.values()):
            self._idle.set()
        broken = tuple(sorted(running.keys[place] for place in report.broken))
        if running.counts:
            self._traffic = Traffic(report.sent_bytes, report.received_bytes)
            self._pulling, self._written = False, self._written or report.placed_bytes > 0
        flow = self._lanes.flow(running.keys)
        self._lanes.give_back(running.keys, broken)
        self._tell(running, report)
        self._report(TransferEnded(attempt, report.cause, broken, flow))

    def _tell(self, running: _Running, report: Report) -> None:
        """One line for each transfer: its end is news as well as its beginning, and a warning if it came early."""
        seconds = self._loop.time() - running.began_at
        end = f"ended early: {report.cause}" if report.cause else "is over"
        done = f"{report.received_bytes:,} bytes received" if running.pulls else f"{report.sent_bytes:,} bytes sent"
        level = logging.WARNING if report.cause else logging.INFO
        moved = report.received_bytes if running.pulls else report.sent_bytes
        sentence = f"the transfer of shared state {end}; {done} in {seconds:.1f} s"
        self._teller.tell("state", level, "transfer over", sentence, seconds=seconds, bytes=moved)

    def abort(self, attempt: int) -> None:
        """Stop a transfer if it is there; its end still comes."""
        if attempt in self._running:
            self._running[attempt].transfer.abort()

    def stop(self) -> None:
        """The loop ends: nothing needs to be told any more. What works on the state of a call has ended when this
        returns, since that call is answered next, and its memory is the caller's then."""
        for running in self._running.values():
            running.transfer.abort()
        for running in self._running.values():
            if running.counts:
                running.transfer.join()  # 100 ms at most
