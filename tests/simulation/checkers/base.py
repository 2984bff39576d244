"""What a checker may look at. Each checker overrides what it needs and raises `Violation` when a rule is broken."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pccl.core.effects.master import MasterEffect, MasterEvent
from pccl.core.effects.peer_effects import Answer
from pccl.core.effects.peer_events import Request
from pccl.core.messages.to_master import ToMaster
from pccl.core.messages.to_peer import ToPeer
from tests.simulation.ledger import Known
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.plane import Part
    from tests.simulation.theatre import Theatre


class Checker:
    """An onlooker; all methods do nothing unless overridden."""

    name = ""

    def __init__(self, theatre: "Theatre") -> None:
        self.theatre = theatre
        self.ledger = theatre.ledger

    def fail(self, what: str) -> Violation:
        """The violation to raise."""
        return Violation(self.name, what)

    def master_handles(self, event: MasterEvent) -> None:
        """The ledger holds the event, not yet its effects."""

    def master_decides(self, event: MasterEvent, effects: list[MasterEffect]) -> None:
        """What the master does about an event, before any of it is done."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        """The ledger does not hold the message yet."""

    def master_sends_again(self, known: Known, message: ToPeer) -> None:
        """The ledger has held the message since it was said for the first time."""

    def master_handled(self, event: MasterEvent) -> None:
        """The ledger holds all effects."""

    def peer_sends(self, host: "PeerHost", message: ToMaster) -> None:
        """A peer is about to send."""

    def peer_sends_again(self, host: "PeerHost", message: ToMaster) -> None:
        """It is about to say again what it said on a connection that broke; much may have happened since."""

    def peer_receives(self, host: "PeerHost", message: ToPeer) -> None:
        """A message of the master has arrived on the connection that a peer uses."""

    def call_made(self, host: "PeerHost", call: int, request: Request) -> None:
        """A person makes a call."""

    def call_expired(self, host: "PeerHost", calls: tuple[int, ...]) -> None:
        """The time that these calls had together is over, and all are open."""

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        """A call is answered."""

    def run_started(self, part: "Part") -> None:
        """A peer lends lanes to a run."""

    def run_ended(self, part: "Part") -> None:
        """A run has let go of them."""

    def sampled(self) -> None:
        """Called every few seconds."""

    def finished(self) -> None:
        """The run is over and everybody has left."""


HOOKS = [name for name in vars(Checker) if not name.startswith("_") and name not in ("name", "fail")]


class Audience:
    """All checkers; for each hook only those that override it are called."""

    def __init__(self, checkers: list[Checker]) -> None:
        self.hooks: dict[str, tuple[Callable[..., None], ...]] = {
            hook: tuple(
                getattr(each, hook) for each in checkers if getattr(type(each), hook) is not getattr(Checker, hook)
            )
            for hook in HOOKS
        }

    def tell(self, hook: str, *what: Any) -> None:
        """Let the checkers look."""
        for look in self.hooks[hook]:
            look(*what)
