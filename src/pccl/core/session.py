"""What one end of a control connection has sent and received, so that one that breaks can be replaced by another.

Both ends count alike. A peer counts what it sends from its `Join` on, over all masters that it has. A master counts
what it sends to each peer, from zero whenever it takes another name. After a break each end sends how much it has
received, and the other sends the rest again: in the end every message has arrived once and in order, as if nothing had
happened. Does not know what the messages mean. Rules: docs/recovery.md, "Broken connection".
"""

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.report import Correction, ReportPart
from pccl.core.messages.to_master import Join, Resume, ToMaster
from pccl.core.messages.to_peer import Awaited, Kick, Resumed, ToPeer, Waiting

Message = TypeVar("Message", ToMaster, ToPeer)

KEPT_MAX = 4096
"""Messages that a master keeps to send them again: as many as one peer may have collectives in flight. What a
connection holds when it breaks is what was on its way, rarely more than a few dozen."""

UNCOUNTED = frozenset((Join, Resume, ReportPart, Correction, Resumed, Kick, Waiting, Awaited, Ping, Pong))
"""What begins or ends a connection, or is about nothing but the moment."""


class Session(Generic[Message]):
    """One end's count."""

    def __init__(self) -> None:
        self.master = ""
        """The name of the master; empty until it has sent it."""
        self.received = 0
        """How many messages of the other end have arrived, under this name of the master's."""
        self.sent = 0
        """How many we have for the other end, sent or not."""
        self._latest: deque[Message] = deque()

    def log(self, message: Message, kept_max: float = KEPT_MAX) -> None:
        """This is for the other end, whether or not there is a connection right now."""
        if type(message) in UNCOUNTED:
            return
        self.sent += 1
        self._latest.append(message)
        while len(self._latest) > kept_max:
            self._latest.popleft()

    def receive(self, message: ToMaster | ToPeer) -> None:
        """The other end sent this."""
        self.received += type(message) not in UNCOUNTED

    def follow(self, master: str) -> None:
        """Another master takes part in our session: it counts what it sends from zero, we go on."""
        self.master, self.received = master, 0

    def lacking(self, received: int) -> tuple[Message, ...] | None:
        """What must be sent again to an end that has so many messages; None if that cannot be, or is not kept."""
        count = self.sent - received
        if not 0 <= count <= len(self._latest):
            return None
        return tuple(islice(self._latest, len(self._latest) - count, None))
