"""The scripted data plane: runs that succeed, fail, stall and race as real ones may, and integers in place of tensors.

A run makes progress once all of its participants have started it. Everybody needs some bytes of everybody, and the
last bytes of its previous peer; whoever stops before these have left keeps the others from finishing. A run that
cannot finish says nothing until a lane breaks or it is aborted, exactly as a thread that waits for bytes.
"""

from random import Random
from typing import TYPE_CHECKING

from pccl.core.effects.peer_effects import AbortAttempt, StartAttempt, StartExchange
from pccl.core.effects.peer_events import AttemptEnded
from pccl.core.fields import Flow
from pccl.types import PeerId
from tests.simulation.lanes import LaneEnd, LaneKey, returned
from tests.simulation.pipes import Pipe

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre

NO_PROGRESS_S = 20.0
"""The data plane's own limit on a lane that passes no bytes."""

_NEVER = float("inf")


class Run:
    """One attempt, as all of its participants see it."""

    def __init__(self, attempt: int, size: int, nth: int) -> None:
        self.attempt = attempt
        self.size = size
        self.nth = nth
        """Of all runs, in the order of their first starts."""
        self.parts: dict[int, Part] = {}


class Part:
    """One participant's part of a run."""

    def __init__(self, host: "PeerHost", effect: StartAttempt | StartExchange, run: Run, value: int) -> None:
        self.host = host
        self.effect = effect
        self.run = run
        self.value = value
        self.result: int | None = None
        self.spoilt = False
        """That is another one than the others have."""
        self.succeeded = False
        self.ended = False
        self.stopped_at = _NEVER
        """When it stopped sending without having finished."""
        self.all_served_at = _NEVER
        """When everybody has what it needs of this peer, except the last bytes for the next one."""
        self.next_served_at = _NEVER

    def ends(self) -> list[LaneEnd]:
        """The lanes lent to it that are still there."""
        if isinstance(self.effect, StartExchange):
            return []
        keys = dict.fromkeys((*self.effect.to_next, *self.effect.from_prev))
        return [self.host.lanes[key] for key in keys if key in self.host.lanes]


def lanes_of(part: Part) -> int:
    """All that its link to the next peer has: runs are too short to be given more than one, and together have all. One
    for an exchange."""
    if not isinstance(part.effect, StartAttempt):
        return 1
    link = part.host.wired.get(part.effect.to_next[0][0])
    return 1 if link is None else link.lanes


class Plane:
    """All runs."""

    def __init__(self, theatre: "Theatre") -> None:
        self._theatre = theatre
        self._runs: dict[int, Run] = {}
        self._parts: dict[tuple[str, int], Part] = {}
        self._pipe = theatre.plan.pipe
        self._warm: set[int] = set()
        """Links that something has run over."""
        self.sent: dict[tuple[PeerId, int], int] = {}
        """What each peer sent in each of its parcels."""
        self._dice = Random(theatre.random.getstate()[1][0] + 5)
        """For what was added later, so that seeds without it stay the runs that they were."""

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, host: "PeerHost", effect: StartAttempt) -> None:
        """A peer lends its lanes and runs."""
        theatre = self._theatre
        part = self.take_part(host, effect, effect.size, theatre.random.randrange(1, 1_000_000))
        run = part.run
        for end in part.ends():
            end.part = part
            if not end.connection.open(end.side):
                self.lane_broke(end, "closed before the run began")
            elif end.connection.vanished:
                self.stall(end)
        if len(run.parts) == run.size:
            self._plan_end(run)
        if theatre.plan.enemies:
            # Whoever takes part without sending a byte is found out by the data plane alone.
            stall_s = theatre.plan.run_s + NO_PROGRESS_S
            theatre.scheduler.after(stall_s, self.end, part, "no progress", ())
        if theatre.random.random() < theatre.plan.run_failure:
            theatre.scheduler.after(theatre.random.uniform(0.0, theatre.plan.run_s), self.end, part, "bad segment", ())

    def take_part(self, host: "PeerHost", effect: StartAttempt | StartExchange, size: int, value: int) -> Part:
        """A peer takes part in an attempt."""
        run = self._runs.setdefault(effect.attempt, Run(effect.attempt, size, len(self._runs) + 1))
        part = Part(host, effect, run, value)
        if not host.hostile:
            self._theatre.audience.tell("run_started", part)
        run.parts[effect.rank] = part
        self._parts[host.name, effect.attempt] = part
        return part

    def abort(self, host: "PeerHost", effect: AbortAttempt) -> None:
        """A peer wants its run to stop; success may still win the race."""
        part = self._parts[host.name, effect.attempt]
        self._theatre.scheduler.after(self._theatre.random.uniform(0.0, 0.05), self._stop, part)

    # ── what happens to runs ─────────────────────────────────────────────────────────────────────────────────────────

    def lane_broke(self, end: LaneEnd, cause: str) -> None:
        """A lent lane was closed by the other end or cut."""
        if end.part is not None:
            delay_s = self._theatre.random.uniform(0.0, 0.02)
            self._theatre.scheduler.after(delay_s, self.end, end.part, f"lane {end.key}: {cause}", (end.key,))

    def stall(self, end: LaneEnd) -> None:
        """A lent lane passes no bytes any more."""
        part = end.part
        if part is not None and not part.ended:
            part.stopped_at = min(part.stopped_at, self._theatre.scheduler.now)
            # What fitted into the buffers of the kernels left no segment behind that was begun and not completed: then
            # nobody knows which lane it was, and the next run may get it again.
            broken = (end.key,) if self._theatre.random.random() < 0.5 else ()
            self._theatre.scheduler.after(NO_PROGRESS_S, self.end, part, f"no progress on lane {end.key}", broken)

    def host_gone(self, host: "PeerHost") -> None:
        """A process ended: its runs send nothing any more."""
        for end in host.lanes.values():
            if end.part is not None:
                end.part.stopped_at = min(end.part.stopped_at, self._theatre.scheduler.now)
                end.part.ended = True

    def run_s(self) -> float:
        """How long the bytes of a run that just began take."""
        return self._theatre.random.uniform(0.0, self._theatre.plan.run_s)

    def pull_s(self) -> float:
        """The same for a shared state that is pulled."""
        return self._theatre.random.uniform(0.0, self._theatre.plan.run_s)

    def _plan_end(self, run: Run) -> None:
        random, scheduler = self._theatre.random, self._theatre.scheduler
        duration_s = self.run_s() if self._pipe is None else self._piped_s(self._pipe, run)
        total = sum(part.value for part in run.parts.values())
        for part in run.parts.values():
            self.give(part, total)
            part.all_served_at = scheduler.now + duration_s * random.uniform(0.3, 0.8)
            part.next_served_at = scheduler.now + duration_s * random.uniform(0.8, 1.0)
            scheduler.after(duration_s + random.uniform(0.0, 0.1), self._try_success, part)

    def _piped_s(self, pipe: Pipe, run: Run) -> float:
        """As long as all of it takes over a pipe."""
        attempts = [each.effect for each in run.parts.values() if isinstance(each.effect, StartAttempt)]
        links = {effect.to_next[0][0] for effect in attempts}
        cold = not links <= self._warm
        self._warm |= links
        return pipe.run_s(lanes_of(next(iter(run.parts.values()))), run.nth, cold)

    def give(self, part: Part, result: int) -> None:
        """A peer has its result, or another one where memory is bad or a neighbour sent it something else."""
        plan = self._theatre.plan
        lied_to = any(each.host.lies() for each in part.run.parts.values() if each is not part)
        part.spoilt = self._theatre.acting and (lied_to or self._dice.random() < plan.wrong_results)
        part.result = result + self._dice.randrange(1, 1_000_000) * part.spoilt

    def _try_success(self, part: Part) -> None:
        if part.ended:
            return
        others = [other for other in part.run.parts.values() if other is not part]
        previous = part.run.parts[(part.effect.rank - 1) % part.run.size]
        if any(other.stopped_at < other.all_served_at for other in others):
            return
        if previous.stopped_at < previous.next_served_at:
            return
        if part.host.frozen or any(other.host.frozen and not other.ended for other in others):
            # A stopped process sends nothing, but goes on when it is continued.
            self._theatre.scheduler.after(0.5, self._try_success, part)
            return
        part.succeeded = True
        self.end(part, "", ())

    def _stop(self, part: Part) -> None:
        if part.host.frozen:
            self._theatre.scheduler.after(0.5, self._stop, part)
            return
        random, chance = self._theatre.random, self._theatre.plan.lane_lost_by_abort
        broken = tuple(end.key for end in part.ends() if random.random() < chance)
        self.end(part, "aborted", broken)

    def end(self, part: Part, cause: str, broken: tuple[LaneKey, ...]) -> None:
        """A part is over; only the first end counts."""
        if part.ended or part.host.gone:
            return
        part.ended = True
        if cause:
            part.succeeded = False
            part.stopped_at = min(part.stopped_at, self._theatre.scheduler.now)
        part.host.post(self._let_go, part, cause, broken)

    def _let_go(self, part: Part, cause: str, broken: tuple[LaneKey, ...]) -> None:
        for end in part.ends():
            if end.key in broken:
                end.part = None
                del part.host.lanes[end.key]
                end.close("broken by an aborted run")
            else:
                returned(end, bool(cause) and self._theatre.random.random() < 0.5)
        self._theatre.audience.tell("run_ended", part)
        digest = b"" if cause or part.result is None else part.result.to_bytes(16, "little")
        flow = Flow()
        if self._pipe is not None and not cause and isinstance(part.effect, StartAttempt):
            flow = self._pipe.flow(lanes_of(part), part.run.nth)
        part.host.handle(AttemptEnded(part.effect.tag, part.effect.attempt, cause, broken, digest, flow))

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def part(self, host: "PeerHost", attempt: int) -> Part | None:
        """What a peer did in an attempt."""
        return self._parts.get((host.name, attempt))

    def expected_sum(self, attempt: int, ring: tuple[PeerId, ...]) -> int | None:
        """The sum over exactly this ring, None if it is not the ring that ran."""
        parts = self._runs[attempt].parts
        exchanged = next((part for part in parts.values() if isinstance(part.effect, StartExchange)), None)
        if exchanged is not None:
            return self._exchanged_sum(exchanged, ring)
        values = {part.host.identity.peer: part.value for part in parts.values()}
        return sum(values.values()) if set(values) == set(ring) and len(ring) == len(values) else None

    def _exchanged_sum(self, part: Part, ring: tuple[PeerId, ...]) -> int | None:
        """The same where contributions travelled with the votes: whoever died since then has contributed."""
        assert isinstance(part.effect, StartExchange)
        if len(part.effect.parcels) != len(ring):
            return None
        expected = zip(ring, part.effect.parcels, strict=True)
        return sum(self.sent[peer, number] for peer, (_, number) in expected)
