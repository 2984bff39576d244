"""What a peer and its masters send each other over connections that break: nothing twice, nothing lost, no unjust
kick."""

from typing import TYPE_CHECKING

from pccl.core.effects.master import MasterEvent, Received
from pccl.core.messages.report import ReportPart
from pccl.core.messages.to_master import Join, Leave, Resume, ToMaster
from pccl.core.messages.to_peer import Kick, Resumed, Synced, ToPeer, Topology, Welcome
from pccl.core.session import UNCOUNTED
from pccl.types import PeerId
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre


class KicksAreJust(Checker):
    """A peer without harm receives no `Kick` on the connection it uses, unless the master meant that connection: then
    `NoInnocentLost` has looked at it when it was sent. A kick to a connection that the master has replaced is one that
    nobody listens to, as far as the master can know."""

    name = "kicks are just"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._meant: set[int] = set()
        """Connections."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, Kick):
            self._meant.add(known.connection)

    def peer_receives(self, host: "PeerHost", message: ToPeer) -> None:
        if not isinstance(message, Kick) or host.harms or host.hostile:
            return
        if self.theatre.number_of(host) not in self._meant:
            raise self.fail(f"{host.name} is harmless, and is kicked on the connection it uses: {message.reason}")


class Sent:
    """What one peer has sent since its `Join`, by number."""

    def __init__(self) -> None:
        self.messages: dict[int, ToMaster] = {}
        self.next = 1
        self.last: int | None = None
        """Of its `Resume`, while that is not answered."""
        self.reports_at: int | None = None
        """In which step of the run it began a report that is not complete."""


class OneLog(Checker):
    """A peer numbers its messages over its whole membership, and every master handles each of them once and in order,
    except those that the report it restored the run from has in it. A report is made in one step. No master has more
    messages than were sent, nor fewer than it had before."""

    name = "one log"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._sent: dict[str, Sent] = {}
        """By the name of the process."""
        self._masters: dict[PeerId, str] = {}
        """The name of the master that last took a peer in, as that master knows it."""
        self._handled: dict[tuple[str, PeerId], int] = {}
        """The number of the last message of a peer that a master, by name, has."""

    # ── the peer's end ───────────────────────────────────────────────────────────────────────────────────────────────

    def peer_sends(self, host: "PeerHost", message: ToMaster) -> None:
        if host.hostile:
            return
        sent = self._sent.setdefault(host.name, Sent())
        if sent.reports_at is not None and (not isinstance(message, ReportPart) or sent.reports_at != self._step):
            raise self.fail(f"{host.name} sends {message} in the middle of its report")
        match message:
            case Join():
                self._sent[host.name] = Sent()
            case Resume(sent=last):
                sent.reports_at, sent.last = self._step, last
                if last < max(sent.messages, default=0):
                    raise self.fail(f"{host.name} has sent {max(sent.messages)} messages, and says {last}")
            case ReportPart(last=True):
                sent.reports_at = None
            case _ if type(message) not in UNCOUNTED:
                self._number(host, sent, message)

    def peer_sends_again(self, host: "PeerHost", message: ToMaster) -> None:
        if not host.hostile:
            self._number(host, self._sent[host.name], message)

    @property
    def _step(self) -> int:
        return self.theatre.scheduler.steps

    def _number(self, host: "PeerHost", sent: Sent, message: ToMaster) -> None:
        if isinstance(message, Leave):
            return  # The last one, whatever is owed before it.
        if sent.last is not None:
            raise self.fail(f"{host.name} sends {message} before its Resume is answered")
        if sent.messages.setdefault(sent.next, message) != message:
            raise self.fail(f"{host.name} sends {message} as number {sent.next}, which was {sent.messages[sent.next]}")
        sent.next += 1

    def peer_receives(self, host: "PeerHost", message: ToPeer) -> None:
        sent = self._sent.get(host.name)
        if not isinstance(message, Resumed) or host.hostile or sent is None or sent.last is None:
            return
        if message.received > sent.last:
            raise self.fail(f"a master has {message.received} messages of {host.name}, which has sent {sent.last}")
        sent.next, sent.last = message.received + 1, None

    # ── the master's end ─────────────────────────────────────────────────────────────────────────────────────────────

    def master_sends(self, known: Known, message: ToPeer) -> None:
        match message:
            case Welcome(master=master):
                before = self._handled.get((self._masters.get(known.peer, ""), known.peer), 0)
                self._handled[master, known.peer] = before if known.topology is None and known.welcomed else 0
                known.welcomed = True
                self._masters[known.peer] = master
            case Resumed():
                self._resumes(known, message)

    def master_sends_again(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, Resumed):
            self._resumes(known, message)

    def _resumes(self, known: Known, resumed: Resumed) -> None:
        host = self.theatre.process_of(known)
        if host is None or host.hostile:
            return
        handled = self._handled.setdefault((resumed.master, known.peer), resumed.received)
        self._masters[known.peer] = resumed.master
        if handled != resumed.received:
            raise self.fail(f"a master has {handled} messages of {known.peer[:8]}, and says {resumed.received}")

    def master_handles(self, event: MasterEvent) -> None:
        known = self.ledger.known.get(event.connection) if isinstance(event, Received) else None
        if known is None or not isinstance(event, Received) or type(event.message) in UNCOUNTED:
            return
        host = self.theatre.process_of(known)
        if host is None or host.hostile or known.peer not in self._masters or host.name not in self._sent:
            return
        key = self._masters[known.peer], known.peer
        self._handled[key] = number = self._handled.get(key, 0) + 1
        if self.theatre.given_up(known) or isinstance(event.message, Leave):
            return  # The tail of a connection whose peer may have joined again since.
        meant = self._sent[host.name].messages.get(number)
        if meant != event.message:
            raise self.fail(f"number {number} of {host.name} is {meant}, but the master handles {event.message}")


class NoGaps(Checker):
    """What a peer receives is what its master has sent it, message by message, over all its connections to it."""

    name = "no gaps"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._told: dict[Known, list[ToPeer]] = {}
        self._received: dict[str, tuple[str, int]] = {}
        """The master's name, and how many of its messages have arrived, by the name of the process."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if type(message) not in UNCOUNTED:
            self._told.setdefault(known, []).append(message)

    def peer_sends(self, host: "PeerHost", message: ToMaster) -> None:
        if isinstance(message, Join):
            self._received[host.name] = "", 0

    def peer_receives(self, host: "PeerHost", message: ToPeer) -> None:
        if host.hostile or host.name not in self._received:
            return
        master, received = self._received[host.name]
        if isinstance(message, Resumed) and message.master != master:
            self._received[host.name] = message.master, 0
        if type(message) in UNCOUNTED:
            return
        known = self.ledger.known.get(self.theatre.number_of(host) or 0)
        told = self._told.get(known, []) if known is not None else None
        if told is not None and told[received : received + 1] != [message]:
            raise self.fail(f"{host.name} receives {message} as number {received + 1}, of {len(told)} that were sent")
        self._received[host.name] = message.master if isinstance(message, Welcome) else master, received + 1


class NothingInvented(Checker):
    """Where masters have a secret, they take a peer back only by a report of a run, an epoch and a ring that one of
    them has sent to that peer's group, of a state that was agreed on, and of numbers that can have followed."""

    name = "nothing invented"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._runs: dict[PeerId, str] = {}
        """In which each peer is, as far as masters have said."""
        self._said: dict[tuple[str, int, int, int, tuple[PeerId, ...]], None] = {}
        """Run, group, epoch, size and ring."""
        self._states: dict[tuple[int, int, int], None] = {}
        """Group, attempt and revision."""
        self._reports: dict[int, tuple[Resume, tuple[PeerId, ...]]] = {}
        """By connection, as far as they have come."""
        self._complete: dict[tuple[int, PeerId], list[tuple[Resume, tuple[PeerId, ...]]]] = {}
        """By master and peer, all of them: a peer whose connection breaks while its master gathers sends another."""

    def master_handles(self, event: MasterEvent) -> None:
        if isinstance(event, Received) and isinstance(event.message, Resume):
            self._reports[event.connection] = event.message, ()
        if isinstance(event, Received) and isinstance(event.message, ReportPart):
            resume, ring = self._reports.get(event.connection, (None, ()))
            if resume is not None:
                self._reports[event.connection] = report = resume, ring + event.message.ring
                if event.message.last:
                    self._complete.setdefault((self.theatre.master.number, resume.me.peer), []).append(report)

    def master_sends(self, known: Known, message: ToPeer) -> None:
        match message:
            case Welcome(run=run):
                self._runs[known.peer] = run
            case Topology(epoch=epoch, ring=ring, global_size=size):
                self._said[self._runs[known.peer], known.group, epoch, size, ring] = None
            case Synced(attempt=attempt, revision=revision):
                self._states[known.group, attempt, revision] = None
            case Resumed():
                self._check(known)

    def _check(self, known: Known) -> None:
        reports = self._complete.pop((self.theatre.master.number, known.peer))
        if self.theatre.plan.secured and not any(self._is_true(known.group, *report) for report in reports):
            raise self.fail(f"a master believes {known.peer[:8]} what no master has ever said: {reports}")
        self._runs[known.peer] = reports[0][0].run

    def _is_true(self, group: int, resume: Resume, ring: tuple[PeerId, ...]) -> bool:
        agreed = resume.sync.agreed
        state_is = agreed is None or (group, agreed.attempt, agreed.revision) in self._states
        numbers_are = max(resume.answered.last_number, resume.last_link) < NUMBERS_MAX
        return state_is and numbers_are and (resume.run, group, resume.epoch, resume.global_size, ring) in self._said


NUMBERS_MAX = 2**60
"""More than masters give in a thousand restarts."""
