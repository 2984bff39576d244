"""A stress drill from its first process to its report.

Owns the order of things: keep the number of peers up, let faults strike, read all reports, let the peers come together
again, end. Must not know what a fault is or how results are compared.
"""

import heapq
import itertools
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.stress.child import START_S
from tests.stress.faults import Faults
from tests.stress.fleet import Fleet, PeerChild
from tests.stress.network import NoNetwork
from tests.stress.options import Options
from tests.stress.referee import Referee

SPARES = 3
"""Processes that have started and wait for their turn: how long Python takes to start shall not decide when
peers join."""

LOOK_S = 0.1
"""How often bounds are looked at."""

HEAL_STEPS = 3
"""Steps that all do together when faults have ended."""

FOUNDER_STEPS = 1_000_000
"""Newcomers that find no other peer begin this far beyond the latest step, so that no step has two meanings."""


class Drill:
    """One drill. `tick` is called now and then, to show how it goes."""

    def __init__(self, options: Options, fleet: Fleet, tick: Callable[["Drill"], None]) -> None:
        self.options = options
        self.fleet = fleet
        self.referee = Referee(options.wait_s, self._grace_s)
        self.began_at = time.monotonic()
        self.state = "starting"
        self.interrupted = False
        self._tick = tick
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._faults = Faults(options, self._after, fleet.cut)
        self._striking = False
        self._joins_due = 0
        self._masters_killed_at: list[float] = []

    @property
    def score_kills(self) -> int:
        """Kills so far."""
        return sum(self.referee.score.kills.values())

    def conduct(self) -> None:
        """All of it; what broke is with the referee."""
        try:
            self._conduct()
        except KeyboardInterrupt:
            self.interrupted = True
        except NoNetwork as error:
            self.referee.break_off(str(error), error.log)
        secrecy = self.options.secrecy
        self.referee.read_logs(self.fleet.logs, secrecy.hidden if secrecy else ())

    def _conduct(self) -> None:
        for _ in range(self.options.peers + SPARES):
            self.fleet.start_peer()
        self._listen_until(lambda: self._together(1), START_S + self.referee.bound_s, "find together")
        self.state, self._striking = "under faults", True
        self._after(0.0, self._strike)
        self._listen_until(self._enough, None, "")
        self.state, self._striking = "healing", False
        self._listen_until(lambda: not any(peer.doomed or peer.stopped for peer in self.fleet.peers), 60.0, "calm down")
        done = {peer.number: peer.steps for peer in self.fleet.peers}
        self._listen_until(lambda: self._healed(done), START_S + self.referee.bound_s, "go on together")
        self.state = "leaving"
        self._leave()

    # ── the parts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _enough(self) -> bool:
        if self.options.kills is not None:
            return self.score_kills >= self.options.kills
        return time.monotonic() > self.began_at + self.options.seconds

    def _together(self, steps: int) -> bool:
        inside = [peer for peer in self.fleet.peers if peer.stage == "in" and peer.steps >= steps]
        return len(inside) >= self.options.peers

    def _healed(self, done: dict[int, int]) -> bool:
        inside = [peer for peer in self.fleet.peers if peer.stage == "in"]
        size = {peer.size for peer in inside}
        all_stepped = all(peer.steps >= done.get(peer.number, 0) + HEAL_STEPS for peer in inside)
        return len(inside) >= self.options.peers and all_stepped and size == {len(inside)}

    def _leave(self) -> None:
        for peer in list(self.fleet.peers):
            if peer.stage in ("starting", "spare"):
                peer.doomed = "a spare"
                peer.child.signal(signal.SIGKILL)
            else:
                peer.stage = "leaving"
                peer.child.order("leave")
        self._listen_until(lambda: not self.fleet.peers, self.referee.bound_s, "leave")
        if not self.referee.broken:
            self._end_master()

    def _end_master(self) -> None:
        self.fleet.master.signal(signal.SIGTERM)
        try:
            status = self.fleet.master.process.wait(self.referee.bound_s)
        except subprocess.TimeoutExpired:
            what = f"the master did not end within {self.referee.bound_s:g} s"
            self.referee.break_off(what, self.fleet.master.log)
        else:
            if status != 0:
                self.referee.break_off(f"the master ended with status {status}", self.fleet.master.log)

    def _strike(self) -> None:
        if not self._striking:
            return
        kind = self._faults.strike(self.fleet.peers)
        if "stop" in kind:
            self.referee.score.others[kind] += 1
        if kind == "master" and self.fleet.master_is_up:
            self._kill_master()
        self._after(self._faults.pause(*self.options.kill_every), self._strike)

    def _kill_master(self) -> None:
        self.fleet.kill_master()
        self._masters_killed_at.append(time.monotonic())
        self._after(self._faults.master_delay(), self.fleet.start_master)
        for peer in self.fleet.peers:
            # The next master counts the silence of stopped peers from zero: they may be kicked, or just not.
            if peer.kick_due:
                peer.kick_due, peer.excused_until = False, time.monotonic() + self.options.wait_s + peer.late_s

    def _keep_the_number(self) -> None:
        coming = [peer for peer in self.fleet.peers if peer.stage in ("joining", "in") and not peer.doomed]
        for _ in range(self.options.peers - len(coming) - self._joins_due):
            self._joins_due += 1
            self._after(self._faults.join_delay() if self._striking else 0.0, self._join)
        waiting = [peer for peer in self.fleet.peers if peer.stage in ("starting", "spare")]
        if len(waiting) < SPARES and self.state != "leaving":
            self.fleet.start_peer()

    def _join(self) -> None:
        spare = next((peer for peer in self.fleet.peers if peer.stage == "spare"), None)
        if spare is None:
            self._after(LOOK_S, self._join)
            return
        self._joins_due -= 1
        spare.stage = "joining"
        self.referee.score.joins += 1
        self._order_join(spare)
        if self._striking:
            self._faults.greet(spare)

    def _order_join(self, peer: PeerChild) -> None:
        peer.heard_at = time.monotonic()
        latest = self.referee.latest_step
        peer.child.order("join", founder=latest + FOUNDER_STEPS if latest else 1)

    # ── time and lines ───────────────────────────────────────────────────────────────────────────────────────────────

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), do))

    def _listen_until(self, holds: Callable[[], bool], limit_s: float | None, what: str) -> None:
        """Hear peers, run timers, look at bounds, until it holds or something broke."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not self.referee.broken and not holds():
            if self.state != "leaving":
                self._keep_the_number()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()
            due = self._timers[0][0] - time.monotonic() if self._timers else LOOK_S
            for peer, said in self.fleet.hear(max(0.0, min(LOOK_S, due))):
                self._hear(peer, said)
            self._look_at_bounds()
            if deadline is not None and time.monotonic() > deadline:
                self.referee.break_off(f"the peers did not {what} within {limit_s:g} s", self.fleet.master.log)
            self._tick(self)
        if self.referee.broken:
            self.fleet.write_stacks()

    def _grace_s(self, seconds: float) -> float:
        """How much longer than its bound a wait may take that began this long ago: one master is part of the bound,
        but not all that were killed one after the other."""
        since = time.monotonic() - seconds
        return max(0, sum(moment >= since for moment in self._masters_killed_at) - 1) * self.options.restart_s

    def _look_at_bounds(self) -> None:
        if not self.fleet.master_is_due and self.fleet.master.process.poll() is not None:
            status = self.fleet.master.process.returncode
            self.referee.break_off(f"the master ended with status {status}", self.fleet.master.log)
        now = time.monotonic()
        for peer in self.fleet.peers:
            if peer.stopped or peer.stage == "spare":
                peer.heard_at = now
            bound_s = START_S if peer.stage == "starting" else self.referee.bound_s
            if now - peer.heard_at > bound_s + self._grace_s(now - peer.heard_at):
                what = f"{peer.name} has said nothing for {bound_s:g} s; the last was {peer.phase}, step {peer.step}"
                self.referee.break_off(what, peer.child.log)

    def _hear(self, peer: PeerChild, said: dict[str, Any] | None) -> None:
        now = time.monotonic()
        peer.heard_at = now
        if said is None:
            self._ended(peer)
            return
        score, log = self.referee.score, peer.child.log
        match said["event"]:
            case "ready":
                peer.stage = peer.phase = "spare"
            case "at":
                peer.phase, peer.step = said["phase"], said.get("step", peer.step)
            case "accepted":
                peer.stage, peer.peer, peer.steps = "in", said["peer"], 0
            case "committed":
                self.referee.committed(peer.name, said, log, peer.late_s)
            case "aborted":
                score.aborted[said["kind"]] += 1
                self.referee.waited(peer.name, said, log, peer.late_s)
            case "alone":
                score.alone += 1
            case "step":
                peer.steps += 1
                peer.size = said["size"]
                if not peer.stopped:
                    self._back(peer)
                self.referee.step_ended(said["step"], now, log)
            case "kicked":
                self._kicked(peer, said)
            case "left":
                peer.phase = "left"
            case "broke":
                self.referee.break_off(f"{peer.name}: {said['what']}", log)

    def _back(self, peer: PeerChild) -> None:
        """It has ended a step since it was last stopped, if it ever was. The first one may have been over before that,
        all but the telling; the second one began afterwards."""
        peer.steps_back += 1
        if peer.steps_back == 1:
            return
        if peer.kick_due and peer.size > 1:
            late = f"{peer.name} was stopped for {peer.late_s:.1f} s while others waited, and was not kicked"
            self.referee.break_off(late, self.fleet.master.log)
        peer.kick_due, peer.late_s = False, 0.0

    def _kicked(self, peer: PeerChild, said: dict[str, Any]) -> None:
        if not peer.kick_due and not self.fleet.excuses(peer):
            self.referee.break_off(f"{peer.name} was kicked for nothing: {said['reason']}", peer.child.log)
            return
        peer.kick_due, peer.late_s, peer.stage = False, 0.0, "joining"
        self.referee.score.kicks += 1
        self._order_join(peer)

    def _ended(self, peer: PeerChild) -> None:
        status = self.fleet.bury(peer)
        if status == -signal.SIGKILL and peer.doomed:
            if peer.doomed != "a spare":
                self.referee.score.kills[peer.doomed] += 1
                self.referee.score.phases[peer.phase] += 1
        elif not (status == 0 and peer.stage == "leaving" and peer.phase == "left"):
            self.referee.break_off(
                f"{peer.name} ended with status {status} in {peer.phase}, and was not killed", peer.child.log
            )
