"""Who is let in, and who is put out."""

from typing import TYPE_CHECKING

from pccl.core.effects.master import MasterEvent
from pccl.core.effects.peer_effects import Answer, Failure, FailureKind
from pccl.core.fields import KickKind
from pccl.core.master.recovery.away import TOGETHER_S
from pccl.core.messages.to_peer import Kick, Outcome, PendingAnswer, Start, ToPeer, Topology
from pccl.types import PeerId
from tests.simulation import machines
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known
from tests.simulation.master_host import NOTICED_S

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre


class NoInnocentLost(Checker):
    """Nobody loses its place unless something was done to it; above all not by what happens to a candidate."""

    name = "no innocent lost"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._displaced: set[str] = set()

    def master_sends(self, known: Known, message: ToPeer) -> None:
        host = self.theatre.host_of(known)
        if not isinstance(message, Kick) or host is None or host.harms:
            return
        if message.kind is KickKind.VOTELESS:
            return  # A person took its time, and there is a limit on that: see `VotesAreLimited`.
        if message.kind is KickKind.LANES and self._seal_in_different_ways(self.theatre.named_in(message.reason)):
            return
        if self.theatre.given_up(known):
            return  # Nobody hears it: the master stood still, and reads only now that the peer has dialled again.
        if self.theatre.conspiracy and message.kind is KickKind.OTHER_RUN:
            return  # Without proofs of identity a run that was made up is as good as any to a master that knows none.
        if message.kind is KickKind.DISPLACED and known.run not in self._coming_back():
            self._displaced.add(known.run)
        if known.run in self._displaced:
            return  # It began a run at a master whose earlier one was not back yet.
        if self._noticed_late(host, message.kind) or self._impersonated(known) or self._worn_out(known, host, message):
            return
        if message.kind in (KickKind.LATE, KickKind.OTHER_RUN) and host.identity.peer in self.ledger.unlinked:
            return  # Its connection broke, and somebody said that the last link to it did, too.
        if "its party" in message.reason and self._lost_some_of_its_party(host):
            return
        if message.kind is KickKind.PARTY and self._takes_a_place_of_the_dead(host, message.reason):
            return
        how = "accepted" if known.topology is not None else "a candidate"
        named = self.theatre.named_in(message.reason)
        if not self.theatre.reach.troubles(host) and not self._hostile_rival(known, named):
            raise self.fail(f"{host.name} is {how} and harmless, and is kicked: {message.reason}")
        if len(named) < 2:
            raise self.fail(f"the refusal of {host.name} does not name the pair: {message.reason}")
        if self._has_a_place(known, host):
            raise self.fail(f"{host.name} is {how} and has a place in a ring, and is kicked: {message.reason}")

    def _lost_some_of_its_party(self, host: "PeerHost") -> bool:
        """One has ended; or goes in this very event, see `WholeParties`, or has come again as a candidate."""
        here = [self.ledger.find(mate.identity.peer) for mate in machines.mates(host)]
        leaving = [each is None or each.topology is None or each.connection in self.ledger.leaving for each in here]
        return machines.half(host) or any(leaving)

    def _takes_a_place_of_the_dead(self, host: "PeerHost", reason: str) -> bool:
        """The same rank of its machine was a candidate before it, and the master does not know yet that it has gone."""
        named = [
            each for each in self.theatre.hosts_by_name.values() if each.identity.peer in self.theatre.named_in(reason)
        ]
        before = [each for each in named if each is not host and each.identity.party == host.identity.party]
        return bool(before) and all(each.gone or each.harms for each in before)

    def _seal_in_different_ways(self, named: set[PeerId]) -> bool:
        hosts = [host for host in self.theatre.hosts_by_name.values() if host.identity.peer in named]
        hostile = any(host.hostile for host in hosts)  # It may join as another than it is.
        return len(hosts) == 2 and (hostile or len({host.identity.lane_tls for host in hosts}) == 2)

    def _coming_back(self) -> set[str]:
        """Runs that peers report which are not on the roster."""
        return {each.run for each in self.ledger.known.values() if each.told and each.topology is None}

    def _noticed_late(self, host: "PeerHost", kind: KickKind) -> bool:
        """The machine of its master was gone without a word, or it waited for the others where they were not. Meanwhile
        newcomers in greater number had begun another run; or the others went on, who had no link to it."""
        power_lost_s = self.theatre.scheduler.now - self.theatre.power_lost_at
        if power_lost_s > 2 * NOTICED_S and not self._no_master_lasted():
            return False
        unseen = self.theatre.reach.troubled(host) or host.identity.peer not in self.ledger.witnessed
        return kind is KickKind.OTHER_RUN or (kind is KickKind.LATE and unseen)

    def _impersonated(self, known: Known) -> bool:
        """A hostile peer came with its id while it had no connection. Candidates have nothing to lose but that."""
        namesakes = [each for each in self.ledger.known.values() if each.peer == known.peer and self._hostile(each)]
        return known.topology is None and bool(namesakes)

    def _worn_out(self, known: Known, host: "PeerHost", kick: Kick) -> bool:
        """A candidate that takes a tenth of a second for each event, and that a hostile neighbour keeps dialling."""
        group = [each for each in self.ledger.known.values() if each.group == known.group]
        silent = kick.kind is KickKind.SILENT and known.topology is None
        return silent and host.slowness_s >= 0.1 and any(map(self._hostile, group))

    def _hostile_rival(self, known: Known, named: set[PeerId]) -> bool:
        """Whether it lost its place to a hostile peer, of which the master cannot know which of the two lies.

        That may happen among candidates. No accepted peer gives way to a candidate, nor to one that is accepted and
        hostile, unless the operator wants one of the two to go, or there are several of these."""
        present = [each for each in self.ledger.known.values() if each.peer in named]
        if known.topology is None:
            return any(map(self._was_hostile, present))
        rivals = list(filter(self._hostile, present))
        accomplices = [each for each in self.ledger.accepted() if each.group == known.group and self._hostile(each)]
        undecided = bool(self.theatre.plan.master_limits.undecided_s) or len(accomplices) > 1
        return undecided and any(rival.topology is not None for rival in rivals)

    def _was_hostile(self, known: Known) -> bool:
        """Its process may have ended meanwhile, of which the master knows nothing yet."""
        host = self.theatre.process_of(known)
        return host is not None and host.hostile

    def _hostile(self, known: Known) -> bool:
        host = self.theatre.host_of(known)
        return host is not None and host.hostile

    def _has_a_place(self, known: Known, host: "PeerHost") -> bool:
        """Whether a ring of the accepted peers of its group and itself exists, and nothing else can be held against
        it. Hostile peers can spoil any ring, so there is no telling with one in the group. A candidate is tried in
        two places: who cannot reach two others may be refused."""
        reach, group = self.theatre.reach, [each for each in self.ledger.known.values() if each.group == known.group]
        everybody = [each.peer for each in group]
        if reach.troubled(host) or any(map(self._was_hostile, group)):
            return False
        if known.topology is None and reach.strangers(known.peer, everybody) > 1:
            return False
        staying = [each.peer for each in group if each is known or (each.topology is not None and self._sound(each))]
        return reach.ring_is_sure(staying, everybody)

    def _sound(self, known: Known) -> bool:
        host = self.theatre.host_of(known)
        return host is not None and not host.harms

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if not isinstance(answer, Failure) or host.harms or self.theatre.master_for_good:
            return
        lost = answer.kind is FailureKind.MASTER_LOST
        if lost and (self._no_master_lasted() or self._visits_in_vain(host)):
            return
        if answer.kind in (FailureKind.MASTER_LOST, FailureKind.PROTOCOL):
            raise self.fail(f"{host.name} gives up although nothing was done to it: {answer.reason}")

    def _visits_in_vain(self, host: "PeerHost") -> bool:
        """A visitor has no patience with a master that it cannot reach."""
        parted = host.identity.peer in self.theatre.havoc.parted
        return host.identity.visits and (parted or bool(self.theatre.master_crashes) or self.theatre.master_paused)

    def _no_master_lasted(self) -> bool:
        """Master after master crashed before it could go on with the run."""
        plan, now = self.theatre.plan, self.theatre.scheduler.now
        during_s = plan.peer_limits.master_timeout_s + plan.master_limits.silence_s
        return sum(now - crashed < during_s for crashed in self.theatre.master_crashes) > 1


class NobodyWaitsForTheDead(Checker):
    """Whoever has lost its connection to the master, and takes its links with it, is put out at once: with this event,
    or with a tick that is due now, if it was the master that had no more use for the last link. If nobody said that a
    link to it broke it has a few seconds to come back."""

    name = "nobody waits for the dead"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._since: dict[PeerId, float] = {}
        """Since when some are away without a link."""

    def master_handled(self, event: MasterEvent) -> None:
        now, deadline = self.theatre.scheduler.now, self.theatre.master.core.next_deadline()
        if deadline is not None and deadline <= now:
            return
        away = [known for known in self.ledger.known.values() if known.away and known.topology is not None]
        lost = [known for known in away if not self.ledger.linked(known)]
        self._since = {known.peer: self._since.get(known.peer, now) for known in lost}
        for known in lost:
            if known.left_at is not None and (now - known.left_at <= TOGETHER_S or self.theatre.master_paused):
                continue
            waited_s = now - self._since[known.peer]
            long = waited_s > self.theatre.plan.master_limits.reunion_s and not self.theatre.master_paused
            if known.doubted or long:
                raise self.fail(f"{known.peer[:8]} has neither a connection nor links, and is still on the roster")


class VisitorsStayOutside(Checker):
    """A visitor is in no ring, and nobody is asked to let it in."""

    name = "visitors stay outside"

    def master_sends(self, known: Known, message: ToPeer) -> None:
        visitors = {each.peer for each in self.ledger.known.values() if each.visits}
        if isinstance(message, Topology) and visitors.intersection(map(PeerId, message.ring)):
            raise self.fail(f"epoch {message.epoch} has a visitor in its ring")
        if isinstance(message, PendingAnswer | Start) and message.pending and not self.ledger.reunited:
            outside = [each for each in self.ledger.known.values() if each.topology is None]
            if all(each.visits for each in outside):
                raise self.fail(f"{known.peer[:8]} is told that somebody waits, but there are visitors only")


class RingsStand(Checker):
    """Links stand before anybody relies on them: when a candidate is accepted, when a collective starts, and when
    callers are told that theirs was aborted; what an earlier master told somebody is told the others at once."""

    name = "rings stand"
    _last: ToPeer | None = None

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._aborted: set[int] = set()
        """Attempts that somebody was told of."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if message is self._last:
            return
        self._last = message
        match message:
            case Topology(epoch, ring) if known.topology is None and not self.ledger.reunited:
                self._stands(ring, f"epoch {epoch} admits {known.peer[:8]}")
            case Start(tag, attempt) if known.topology is not None:
                self._stands(known.topology.ring, f"attempt {attempt} of tag {tag} starts")
            case Outcome(tag, attempt, False) if known.topology is not None and attempt not in self._aborted:
                self._aborted.add(attempt)
                self._stands(known.topology.ring, f"attempt {attempt} of tag {tag} is told to be aborted")

    def _stands(self, ring: tuple[str, ...], what: str) -> None:
        known = {each.peer: each for each in self.ledger.known.values()}
        for rank, here in enumerate(ring if len(ring) > 1 else ()):
            for there in (ring[rank - 1], ring[(rank + 1) % len(ring)]):
                end = known.get(PeerId(here))
                links = [] if end is None else [link.number for link in end.links.values() if link.peer == there]
                if end is None or not links or not end.up.issuperset(links):
                    raise self.fail(f"{what} while {here[:8]} has no link to {there[:8]}")
