"""What is told of calls that are tried again. Must not know how they come to their ends."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pccl.logs import Teller
from pccl.types import PeerId, tag_name


@dataclass(frozen=True)
class Retry:
    """A call that is tried again, and why."""

    call: str
    tag: int
    attempt: int
    reason: str
    lost: tuple[PeerId, ...]

    @property
    def event(self) -> object:
        """What happened, the same for all calls that it met."""
        return self.lost or self.reason.replace(tag_name(self.tag), "")


class Retries:
    """Logs one line for each event, however many calls it met: one death may abort a thousand collectives."""

    def __init__(self, later: Callable[[Callable[[], None]], object], teller: Teller) -> None:
        """`later` calls a function after a moment, in which the others of an event come."""
        self._teller = teller
        self._later = later
        self._lock = threading.Lock()
        self._gathered: dict[object, list[Retry]] = {}

    def add(self, retry: Retry) -> None:
        """In any thread."""
        with self._lock:
            gathered = self._gathered.setdefault(retry.event, [])
            gathered.append(retry)
        if len(gathered) == 1:
            self._later(partial(self._tell, retry.event))

    def _tell(self, event: object) -> None:
        with self._lock:
            first, *others = self._gathered.pop(event)
        also = f", with {len(others)} other{'s' if len(others) > 1 else ''}" if others else ""
        sentence = f"{first.call} tag {first.tag}, attempt {first.attempt}: {first.reason}. Trying again{also}"
        # The loss of a peer was a line of its own, in the log of each peer.
        level = logging.INFO if first.lost else logging.WARNING
        self._teller.tell("collective", level, "retry", sentence, tag=first.tag)
