"""Who keeps the score of a stress drill: what was committed, what broke, how long anybody had to wait.

Owns the rules that survivors are held to, and the counts. Must not know processes beyond what is told of them.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAUSE_BOUNDS = 2
"""Between the ends of two steps: a fault may strike when another one has almost been dealt with."""

KEPT_STEPS = 100
"""Steps whose results are kept for comparison: no peer is a whole step behind another one for long."""

SIGNS = ("Traceback (most recent call last)", "internal error", "Fatal Python error", "was never retrieved")
"""What no process logs as long as all is well."""


@dataclass
class Score:
    """The counts of a run."""

    kills: Counter[str] = field(default_factory=Counter)
    """By kind."""
    phases: Counter[str] = field(default_factory=Counter)
    """The same kills by what the victim was doing."""
    others: Counter[str] = field(default_factory=Counter)
    """Faults that are no kills."""
    joins: int = 0
    kicks: int = 0
    steps: int = 0
    committed: Counter[str] = field(default_factory=Counter)
    """By kind of call, counted at each peer."""
    aborted: Counter[str] = field(default_factory=Counter)
    """The same, those included that the library tried again by itself."""
    alone: int = 0
    compared: int = 0
    """Results that were found equal to those of another peer."""
    longest_call_s: float = 0.0
    longest_pause_s: float = 0.0
    """Between the ends of two steps, each of the peer that ended it first."""


class Referee:
    """Hears what peers say about their calls, and compares."""

    def __init__(self, bound_s: float, grace_s: Callable[[float], float] = lambda seconds: 0.0) -> None:
        """`grace_s` says how much longer than its bound a wait may be that was this long and has just ended."""
        self._grace_s = grace_s
        self.bound_s = bound_s
        self.pause_bound_s = PAUSE_BOUNDS * bound_s
        self.score = Score()
        self.broken: list[str] = []
        self.latest_step = 0
        self._results: dict[int, dict[int, tuple[Any, str]]] = {}
        """By step and tag: the result, and who was the first to tell it."""
        self._step_ended_at: float | None = None

    def break_off(self, what: str, log: Path) -> None:
        """Something that must not happen has happened."""
        self.broken.append(f"{what}\n    see {log}")

    def read_logs(self, logs: Path, hidden: tuple[str, ...] = ()) -> None:
        """An error in a thread or task that no call waits for is in the logs and nowhere else. What is hidden is in
        none of them."""
        if self.broken:
            return  # Where to look is known, and there are tracebacks of what broke.
        for log in sorted(logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            if any(each in line for line in lines for each in hidden):
                self.break_off(f"{log.stem} has logged a token or a secret", log)
            found = [number for number, line in enumerate(lines, start=1) if any(sign in line for sign in SIGNS)]
            if found:
                self.break_off(f"{log.stem} logged an error in line {found[0]}: {lines[found[0] - 1][:200]}", log)

    def committed(self, who: str, said: dict[str, Any], log: Path, late_s: float) -> None:
        """A call was committed at a peer: so it must be everywhere, with the same bits of the same contributors."""
        self.score.committed[said["kind"]] += 1
        self.waited(who, said, log, late_s)
        step, tag = said["step"], said["tag"]
        result = said["digest"], said["peers"], said["attempts"]
        first = self._results.setdefault(step, {}).setdefault(tag, (result, who))
        if first[1] == who:
            return
        self.score.compared += 1
        if first[0] != result:
            self.break_off(
                f"step {step} tag {tag} ({said['kind']}) differs: {_told(*result)} at {who}, "
                f"{_told(*first[0])} at {first[1]}",
                log,
            )

    def waited(self, who: str, said: dict[str, Any], log: Path, late_s: float) -> None:
        """A call has ended, with a result or without."""
        seconds = said.get("seconds", 0.0)
        self.score.longest_call_s = max(self.score.longest_call_s, seconds - late_s)
        if seconds > self.bound_s + late_s + self._grace_s(seconds):
            self.break_off(f"{who} waited {seconds:.1f} s in {said['kind']}, the bound is {self.bound_s:g} s", log)

    def step_ended(self, step: int, now: float, log: Path) -> None:
        """A peer has done a step."""
        if step <= self.latest_step:
            return
        self.latest_step = step
        self.score.steps += 1
        if self._step_ended_at is not None:
            pause_s = now - self._step_ended_at
            self.score.longest_pause_s = max(self.score.longest_pause_s, pause_s)
            if pause_s > self.pause_bound_s + self._grace_s(pause_s):
                self.break_off(f"step {step} ended {pause_s:.1f} s after the one before it", log)
        self._step_ended_at = now
        for old in [old for old in self._results if old < step - KEPT_STEPS]:
            del self._results[old]


def _told(bits: str, peers: list[str], attempts: int) -> str:
    return f"digest {bits} of {', '.join(peer[:8] for peer in peers)} after {attempts} attempts"
