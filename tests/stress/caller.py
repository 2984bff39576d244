"""What all calls of a stress step have in common: how they are drawn, made until they succeed, checked and reported.

Owns the rules that hold for every call: exact results of those who took part, inputs intact after a failure. Must not
know the calls themselves.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from pccl import CollectiveAborted, Communicator, PCCLError, ReduceInfo, TooFewPeers
from tests.stress.values import Array, Tensor, Wrong, digest

SMALL_BYTES_MAX = 1 << 16
"""Up to here a contribution may travel with its vote."""

LARGE_BYTES = (1 << 20, 8 << 20)

TRIES_MAX = 64
"""Aborts of one call that a peer puts up with. Each needs a death or a broken link."""

ITEM_BYTES = {"float32": 4, "int64": 8, "float64": 8}
"""The types that are used."""

Report = Callable[..., None]
Outcome = TypeVar("Outcome")
Thing = TypeVar("Thing")


class Caller:
    """One peer in one step."""

    def __init__(self, communicator: Communicator, seed: int, step: int, report: Report) -> None:
        self.communicator = communicator
        self.me = communicator.peer_id
        self.step = step
        self.report = report
        self.draw = random.Random(f"{seed}/{step}")
        """The same on all peers."""
        self.own = random.Random(f"{seed}/{step}/{self.me}")

    # ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def tensor(self, tag: int, least: int, most: int, part: int = 0) -> Tensor:
        """A tensor with a number of bytes from `least` to `most`, more often a short one than a long one."""
        dtype = self.draw.choice(list(ITEM_BYTES))
        nbytes = int(least + (most - least) * self.draw.random() ** 2)
        return Tensor(self.step, tag, part, max(1, nbytes // ITEM_BYTES[dtype]), dtype)

    def any_tensor(self, tag: int, part: int = 0) -> Tensor:
        """A tensor for the ring as often as one that travels with its vote."""
        return self.tensor(tag, 0, LARGE_BYTES[0] if self.draw.random() < 0.5 else SMALL_BYTES_MAX, part)

    def shuffled(self, things: Sequence[Thing]) -> list[Thing]:
        """In an order of this peer's own."""
        return self.own.sample(things, len(things))

    # ── making ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def insist(
        self,
        kind: str,
        call: Callable[[], Outcome],
        check: Callable[[], None],
        again: type[PCCLError] | tuple[type[PCCLError], ...] = CollectiveAborted,
    ) -> tuple[Outcome, int] | None:
        """Make a call until it succeeds: its result, and the number of failures before; None when no other peer is
        left to reduce with. `check` looks at the inputs after each failure."""
        for aborted in range(TRIES_MAX):
            began = time.monotonic()
            try:
                return call(), aborted
            except TooFewPeers:
                check()
                self.report("alone")
                return None
            except again as error:
                check()
                self.report("aborted", kind=kind, seconds=time.monotonic() - began, reason=str(error))
        raise Wrong(f"step {self.step}: {kind} was aborted {TRIES_MAX} times")

    def hidden(self, kind: str, info: ReduceInfo) -> None:
        """Report the aborts after which the library tried again by itself."""
        for _ in range(info.attempts - 1):
            self.report("aborted", kind=kind, reason="the library tried again")

    def committed(self, kind: str, tag: int, results: Sequence[Array], info: ReduceInfo) -> None:
        """Report it. The results must be equal on all peers, and so must be those who took part, and `attempts`."""
        if self.me not in info.peers:
            raise Wrong(f"step {self.step} tag {tag}: committed without this peer, among {info.peers}")
        self.report(
            "committed",
            kind=kind,
            step=self.step,
            tag=tag,
            digest=digest(results),
            peers=sorted(info.peers),
            attempts=info.attempts,
            seconds=info.seconds,
        )
