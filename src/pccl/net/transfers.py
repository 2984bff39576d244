"""Transfers of shared state: lanes lent to them, and the state that this peer offers or lacks.

Owns what stands between an effect and the threads that move chunks. Must not know who was elected, or why.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pccl.core.effects import PeerEvent, StartTransfer, TransferEnded
from pccl.dataplane.agenda import Goal
from pccl.dataplane.manifest import Holding
from pccl.dataplane.offers import Traffic
from pccl.dataplane.pulling import Pulling
from pccl.dataplane.serving import Serving
from pccl.dataplane.transfer import Report, Transfer
from pccl.net.lanes import LaneKey, Lanes


@dataclass
class _Running:
    transfer: Transfer
    keys: list[LaneKey]
    """Of all its lanes, in the order in which a report counts them."""


class Transfers:
    """All transfers of one peer, of which there is one at a time. Lives in one event loop."""

    def __init__(self, lanes: Lanes, stall_s: float, report: Callable[[PeerEvent], None]) -> None:
        self._lanes = lanes
        self._stall_s = stall_s
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, _Running] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._holding: Holding | None = None
        self._traffic = Traffic()
        self.pulled = False
        """Since the last offer its tensors were written to, or may have been."""

    @property
    def offered(self) -> bool:
        """A call has left its state here and was not answered."""
        return self._holding is not None

    def offer(self, holding: Holding) -> None:
        """This is what we hold, before it is voted on."""
        self._holding, self._traffic, self.pulled = holding, Traffic(), False

    async def withdraw(self) -> None:
        """The call was interrupted: from now on nothing works on its state, though its vote stands."""
        self._holding = None
        for running in self._running.values():
            running.transfer.abort()
        await self._idle.wait()

    def settle(self) -> Traffic:
        """The call was answered, so nothing works on the state any more: how many bytes of content it moved."""
        self._holding = None
        return self._traffic

    def start(self, effect: StartTransfer) -> None:
        """Pull or serve; ends in `TransferEnded`."""
        if self._holding is None:
            self._report(TransferEnded(effect.attempt, "the call was interrupted"))
            return
        lent = [(keys, sockets) for keys in effect.lanes if (sockets := self._lanes.lend(keys)) is not None]
        if not lent:
            self._report(TransferEnded(effect.attempt, "every lane broke before it began"))
            return
        holders = [sockets for _, sockets in lent]
        transfer = self._make(effect, self._holding, holders)
        self._running[effect.attempt] = _Running(transfer, [key for keys, _ in lent for key in keys])
        self._idle.clear()
        self.pulled = self.pulled or effect.pull
        try:
            transfer.start()
        except RuntimeError as error:  # The machine has no more threads.
            self._ended(effect.attempt, Report(str(error)))

    def _make(self, effect: StartTransfer, holding: Holding, holders: list[list[socket.socket]]) -> Transfer:
        def ended(report: Report) -> None:
            with suppress(RuntimeError):  # The loop has ended: nobody waits for this any more.
                self._loop.call_soon_threadsafe(self._ended, effect.attempt, report)

        if effect.pull:
            goal = Goal(effect.layout, effect.content, effect.newcomer)
            return Pulling(holding, goal, holders, ended, self._stall_s)
        return Serving(holding, [lane for lanes in holders for lane in lanes], ended, self._stall_s)

    def _ended(self, attempt: int, report: Report) -> None:
        running = self._running.pop(attempt)
        if not self._running:
            self._idle.set()
        broken = tuple(sorted(running.keys[place] for place in report.broken))
        self._traffic = Traffic(report.sent_bytes, report.received_bytes)
        self._lanes.give_back(running.keys, broken)
        self._report(TransferEnded(attempt, report.cause, broken))

    def abort(self, attempt: int) -> None:
        """Stop a transfer if it is there; its end still comes."""
        if attempt in self._running:
            self._running[attempt].transfer.abort()

    def stop(self) -> None:
        """The loop ends: nothing needs to be told any more."""
        for running in self._running.values():
            running.transfer.abort()
