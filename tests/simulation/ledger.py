"""The master as an onlooker sees it: built only from what goes into it and comes out, never from its own state.

Owns the picture that the checkers compare the master's decisions with. Judges nothing.
"""

from collections import deque
from collections.abc import Iterator
from math import inf

from pccl.core.effects.master import Close, Closed, MasterEffect, MasterEvent, Received, Send
from pccl.core.fields import CollectiveSpec, LinkSpec
from pccl.core.master.recovery.restore import EPOCHS_APART
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.report import Agreed, Correction, ReportPart
from pccl.core.messages.to_master import (
    AskPending,
    Done,
    Failed,
    Fetch,
    Initiate,
    Join,
    Leave,
    LinkDown,
    LinkUp,
    Resume,
    SyncState,
    ToMaster,
    VoteTopology,
)
from pccl.core.messages.to_peer import (
    Kick,
    Outcome,
    PendingAnswer,
    RefusedCollective,
    RefusedPending,
    RefusedSync,
    RefusedTopology,
    Resumed,
    Start,
    StartSync,
    Synced,
    ToPeer,
    Topology,
    TopologyUpdated,
    Welcome,
    Wire,
    Withdrawn,
)
from pccl.types import PeerId


class Known:
    """What the master was told by one peer and told it."""

    def __init__(self, connection: int, join: Join | Resume) -> None:
        self.connection = connection
        self.peer = PeerId(join.me.peer)
        self.group = join.me.group
        self.party = join.me.party
        self.left_at: float | None = None
        """When it said goodbye, if its party has still to."""
        self.visits = isinstance(join, Join) and join.me.visits
        self.fetching = False
        self.welcomed = False
        """It was sent a `Welcome` before."""
        self.topology: Topology | None = None
        """The last one sent; a peer is accepted from the first on."""
        self.epoch = join.epoch if isinstance(join, Resume) else 0
        """The last one that it knew when it came back."""
        self.was_accepted = False
        """Accepted before the event that is being handled."""
        self.updating = False
        self.asking = False
        self.initiated: dict[int, CollectiveSpec] = {}
        self.claim: SyncState | None = None
        self.synced = 0
        """The last sync that put it in step."""
        self.links: dict[int, LinkSpec] = {}
        """Links of the last `Wire` sent."""
        self.up: set[int] = set()
        self.tells = isinstance(join, Resume)
        """It came back, and has not told all that it knew."""
        self.told = False
        """All that it knew, when it came back."""
        self.stands = False
        """What it told on an earlier connection counts: what it did since comes as messages after its return."""
        self.away = False
        """Its connection broke."""
        self.pings: deque[float] = deque()
        """When it was sent those that it has not answered."""
        self.answered_at = -inf
        """When it was sent the last one that it has."""
        self.doubted_at = -inf
        """When somebody last said that a link to it broke."""
        self.returned = False
        """It was accepted by an earlier master, and this one has taken it back."""
        self.ring: tuple[PeerId, ...] = ()
        """Which it came back with."""
        self.agreed: Agreed | None = None
        self.run = ""
        """Of which it is, or was when it came back."""
        if isinstance(join, Resume):
            self.run = join.run
            self.updating, self.asking, self.claim = join.updating, join.asking, join.sync.claim
            self.agreed = join.sync.agreed

    @property
    def doubted(self) -> bool:
        """Somebody found it gone, and it has not shown since that it is there."""
        return self.doubted_at > self.answered_at

    @property
    def waits(self) -> bool:
        """It has called something that the master has not answered."""
        if self.visits:
            return self.fetching
        return self.updating or self.asking or bool(self.initiated) or self.topology is None or self.claim is not None


class Attempt:
    """One attempt of one collective."""

    def __init__(self, start: Start, group: int) -> None:
        self.tag = start.tag
        self.number = start.attempt
        self.epoch = start.epoch
        self.lanes = start.lanes
        self.group = group
        self.participants: dict[PeerId, Known] = {}
        self.reports: dict[PeerId, bool] = {}
        self.unheard: set[PeerId] = set()
        """Participants that a master was lost before they had heard of the start."""
        self.cut_short = False
        """A master was lost meanwhile."""
        self.outcome: Outcome | None = None


class Ledger:
    """All peers that the master knows, and all attempts."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        """To the master that is looked at: the one that leads, except while another one handles something."""
        self.attempts: dict[int, Attempt] = {}
        self.running: dict[int, Attempt] = {}
        self.leaving: set[int] = set()
        """Connections that the effects of the present event close."""
        self.reunited = False
        """Peers were taken back in the present event."""
        self.unlinked: set[PeerId] = set()
        """Those who were given up while they were away, and of whom somebody had said that the last link broke."""
        self._now = 0.0
        self.witnessed: set[PeerId] = set()
        """Those to whom somebody had a link that stood when the run last went on under another master."""
        self.missed_a_life = False
        """Somebody was taken back who knows nothing of the master before: it was lost to the run then, or was taken
        back and did not hear of it. Where nobody else of its group is there, no master can tell which."""

    def forget_outcomes(self) -> None:
        """A master that was leading is gone, or a run comes back."""
        for attempt in self.attempts.values():
            attempt.cut_short, attempt.outcome = True, None

    def accepted(self) -> Iterator[Known]:
        """Those on the roster."""
        return (known for known in self.known.values() if known.topology is not None)

    def electorate(self) -> Iterator[Known]:
        """Those whose votes count for what is decided right now: accepted before this event, and staying after it."""
        return (each for each in self.known.values() if each.was_accepted and each.connection not in self.leaving)

    def half(self, known: Known) -> bool:
        """Not all of its party are here, as candidates; or some of that are on the roster."""
        if not known.party.name:
            return False
        alike = [each for each in self.known.values() if each.party.which == known.party.which and not each.visits]
        return len(alike) != known.party.size or any(each.topology for each in alike)

    def find(self, peer: PeerId) -> Known | None:
        """The peer with this id."""
        return next((known for known in self.known.values() if known.peer == peer), None)

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, event: MasterEvent, effects: list[MasterEffect], now: float) -> None:
        """An event has been handled: note what it said, before its effects are read one by one."""
        self._now = now
        for known in self.known.values():
            known.was_accepted = known.topology is not None
        self.leaving = {effect.connection for effect in effects if isinstance(effect, Close)}
        self.reunited = False
        if isinstance(event, Closed):
            known = self.known.get(event.connection)
            if known is not None and (known.topology is not None or known.told):
                known.away = True  # It may come back, until the master says otherwise.
            else:
                self._forget(event.connection)
        elif isinstance(event, Received):
            if isinstance(event.message, Join | Resume) and event.connection not in self.known:
                self._comes(event.connection, event.message)
            elif event.connection in self.known:
                self._received(self.known[event.connection], event.message)
        for known in self.known.values():
            if known.away and self.linked(known, here=True):
                known.doubted_at = -inf  # Another one still has a link to it: who said otherwise is refuted.

    def _comes(self, connection: int, first: Join | Resume) -> None:
        known = Known(connection, first)
        before = self.find(known.peer)
        if before is not None and before.told and before.topology is None:
            # What it told first stands: that a link broke since is said later.
            known.links, known.up, known.told = dict(before.links), set(before.up), True
            known.initiated, known.stands = dict(before.initiated), True
        self.known[connection] = known

    def _received(self, known: Known, message: ToMaster) -> None:
        match message:
            case VoteTopology():
                known.updating = True
            case AskPending():
                known.asking = True
            case Fetch():
                known.fetching = True
            case Initiate(tag, spec):
                known.initiated[tag] = spec
            case Done(_, number) if self._takes_part(known, number):
                self.attempts[number].reports[known.peer] = True
            case Failed(_, number) if self._takes_part(known, number):
                self.attempts[number].reports[known.peer] = False
            case SyncState():
                known.claim = message
            case ReportPart() if known.topology is None:  # Whoever is back already is not asked.
                self._recalled(known, message)
            case LinkUp(link) if link in known.links:
                known.up.add(link)
            case LinkDown(link):
                known.up.discard(link)
                self._doubt(known, link)
            case Correction(link) if known.topology is None:
                known.up.discard(link)
                known.links.pop(link, None)
            case Pong() if known.pings:
                known.answered_at = known.pings.popleft()
            case Leave() if known.topology is not None and known.party.size > 1:
                # It keeps its place until the others of its party have said so, too: the master closes its connection.
                known.away, known.left_at = True, self._now if known.left_at is None else known.left_at
            case Leave():
                self._forget(known.connection)

    def _doubt(self, known: Known, number: int) -> None:
        if known.topology is None and (known.told or known.tells):
            return  # A hostile peer: an honest one that returns corrects its report, and the links in it are made up.
        other = self.find(PeerId(known.links[number].peer)) if number in known.links else None
        if other is not None:
            other.doubted_at = self._now

    def _recalled(self, known: Known, recall: ReportPart) -> None:
        """Somebody tells what it did under an earlier master."""
        known.told, known.tells = known.told or recall.last, not recall.last
        if known.stands:
            return
        known.ring += tuple(PeerId(peer) for peer in recall.ring)
        known.links |= {link.number: link for link in recall.links}
        known.up |= {link.number for link in recall.links}
        for run in recall.attempts:
            known.initiated[run.tag] = run.spec
            if run.attempt in self.attempts and run.over:
                self.attempts[run.attempt].reports[known.peer] = not run.cause
            if not run.attempt:
                # Perhaps it was over already, for somebody who was lost since or did not hear of that.
                same = [each for each in self.attempts.values() if (each.tag, each.group) == (run.tag, known.group)]
                for attempt in same[-1:]:
                    attempt.unheard.add(known.peer)

    def _takes_part(self, known: Known, number: int) -> bool:
        return number in self.attempts and known.peer in self.attempts[number].participants

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def deliveries(self, effects: list[MasterEffect]) -> Iterator[tuple[Known, ToPeer]]:
        """Each message to each known peer; the ledger notes it once the caller has looked at it."""
        for effect in effects:
            if isinstance(effect, Send):
                for connection in effect.connections:
                    if effect.again and isinstance(effect.message, Resumed):
                        self._come_back(connection)
                    known = None if effect.again else self.known.get(connection)
                    if known is not None:
                        yield known, effect.message
                        self._sent(known, effect.message)
            elif isinstance(effect, Close):
                known = self.known.get(effect.connection)
                if known is not None and known.away and known.doubted and not self.linked(known):
                    self.unlinked.add(known.peer)
                self._forget(effect.connection)

    def _come_back(self, connection: int) -> None:
        """The peer on this connection is one that the master knows."""
        peer = self.known[connection].peer
        before = next(known for known in self.known.values() if known.peer == peer and known.connection != connection)
        del self.known[before.connection]
        before.connection, before.away = connection, False
        before.pings.clear()
        before.doubted_at = -inf
        self.known[connection] = before

    def linked(self, known: Known, *, here: bool = False) -> bool:
        """Somebody on the roster has a link to it that stands; if `here`, somebody with a connection."""
        others = [other for other in self.known.values() if other is not known and (other.topology or other.told)]
        others = [other for other in others if not (here and other.away)]
        return any(number in other.up for other in others for number in known.up)

    def _sent(self, known: Known, message: ToPeer) -> None:
        match message:
            case Welcome(run):
                known.run = run
            case Resumed():
                if not self.reunited:
                    self.forget_outcomes()  # Whatever was sent before, those who got it tell.
                    reports = [each for each in self.known.values() if each.told]
                    self.witnessed = {PeerId(link.peer) for each in reports for link in each.links.values()}
                    epochs = [each.epoch for each in reports]
                    self.missed_a_life = self.missed_a_life or max(epochs) - min(epochs) >= EPOCHS_APART
                self.reunited = known.returned = True
            case Ping():
                known.pings.append(self._now)
            case Topology():
                known.topology = message
            case TopologyUpdated() | RefusedTopology():
                known.updating = False
            case PendingAnswer() | RefusedPending():
                known.asking = False
            case Synced(attempt):
                known.claim, known.synced = None, attempt
            case RefusedSync():
                known.claim, known.fetching = None, False
            case StartSync():
                known.fetching = False
            case RefusedCollective(tag):
                known.initiated.pop(tag, None)
            case Withdrawn(tags):
                for tag in tags:
                    known.initiated.pop(tag, None)
            case Start(_, number):
                started = self.attempts.setdefault(number, Attempt(message, known.group))
                started.participants[known.peer] = known
                self.running[number] = started
            case Outcome(tag, number):
                known.initiated.pop(tag, None)
                self.attempts[number].outcome = message
                self.running.pop(number, None)
            case Wire(links):
                known.links = {link.number: link for link in links}
                known.up &= known.links.keys()
            case Kick():
                pass

    def _forget(self, connection: int) -> None:
        self.known.pop(connection, None)
