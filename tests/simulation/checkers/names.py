"""Every sentence that leaves the master is text, and calls each peer by its name."""

from pccl.core.messages.to_peer import ToPeer
from pccl.core.names import clean, shown
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known


class SentencesHaveNames(Checker):
    """No sentence has what a terminal acts on, and none has the id of a peer that is here without its name."""

    name = "sentences have names"

    def master_sends(self, known: Known, message: ToPeer) -> None:
        sentence = getattr(message, "reason", "") or getattr(message, "news", "")
        if not sentence:
            return
        if not sentence.isprintable():
            raise self.fail(f"{type(message).__name__} has {sentence!r}")
        for peer in self.theatre.named_in(sentence):
            host = self.theatre.hosts_by_name[peer[:8]]
            if host.hostile:
                continue  # It may join without its name, or resume with another.
            name = clean(host.identity.label.name)
            if name and self.ledger.find(peer) is not None and f"{shown(name)} ({peer[:8]})" not in sentence:
                raise self.fail(f"{peer[:8]} is called {name!r}, and {type(message).__name__} says {sentence!r}")
