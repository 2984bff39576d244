"""What a stress run shows: a table while it runs, a report at its end.

Owns the words and their layout. On a terminal the table is drawn over itself; elsewhere a line comes now and then.
"""

import time
from collections import Counter
from typing import IO

from pccl.cli.stress.run import Run

TABLE_S = 0.5
"""Between two tables: as often as an eye can follow."""

LINE_S = 10.0
"""Between two lines where no table can be drawn."""


class Show:
    """Shows one run on a stream."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._next_at = 0.0
        self._lines_drawn = 0

    def tick(self, run: Run) -> None:
        """Show how it goes, if it is time."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + (TABLE_S if self._terminal else LINE_S)
        if not self._terminal:
            print(_headline(run), file=self._out, flush=True)
            return
        lines = [_headline(run), *_peers(run)]
        self._clear()
        print("\n".join(line[:119] for line in lines), file=self._out, flush=True)
        self._lines_drawn = len(lines)

    def _clear(self) -> None:
        if self._lines_drawn:
            print(f"\x1b[{self._lines_drawn}F\x1b[J", end="", file=self._out)
            self._lines_drawn = 0

    def report(self, run: Run, replay: str) -> None:
        """The end of the story."""
        self._clear()
        score = run.referee.score
        committed, aborted = sum(score.committed.values()), sum(score.aborted.values())
        seconds = time.monotonic() - run.began_at
        lines = [
            f"seed {run.options.seed}: {run.score_kills} kills, {score.joins} joins in {seconds:.0f} s",
            f"  kills by kind         {_counts(score.kills)}",
            f"  kills by phase        {_counts(score.phases)}",
            f"  other faults          {_counts(score.others)}; {score.kicks} kicked and back again",
            f"  steps                 {score.steps}",
            f"  calls committed       {committed}: {_counts(score.committed)}",
            f"  calls aborted         {aborted}: {_counts(score.aborted)}; {score.alone} found nobody to reduce with",
            f"  results compared      {score.compared} between peers, each checked against the exact sum",
            f"  longest call          {score.longest_call_s:.2f} s (bound {run.referee.bound_s:g} s)",
            f"  longest pause         {score.longest_pause_s:.2f} s between the ends of two steps",
        ]
        if run.referee.broken:
            lines += ["", f"BROKEN: {len(run.referee.broken)}", *(f"  {what}" for what in run.referee.broken)]
            lines += [f"  all logs: {run.fleet.logs}", f"  the same faults again: {replay}"]
        else:
            lines.append("  nothing broke")
        print("\n".join(lines), file=self._out, flush=True)


def _headline(run: Run) -> str:
    score = run.referee.score
    return (
        f"[{time.monotonic() - run.began_at:6.1f} s] {run.state}: step {score.steps}, {run.score_kills} kills, "
        f"{sum(score.others.values())} stops, {sum(score.committed.values())} calls committed, "
        f"{sum(score.aborted.values())} aborted, longest pause {score.longest_pause_s:.2f} s"
    )


def _peers(run: Run) -> list[str]:
    now = time.monotonic()
    rows = [f"  {'peer':<20} {'stage':<10} {'phase':<20} {'step':>8} {'quiet':>7}  fate"]
    for peer in run.fleet.peers:
        if peer.stage not in ("starting", "spare"):
            fate = "stopped" if peer.stopped else peer.doomed and f"to die {peer.doomed}"
            quiet = now - peer.heard_at
            rows.append(f"  {peer.name:<20} {peer.stage:<10} {peer.phase:<20} {peer.step:>8} {quiet:>6.1f}s  {fate}")
    return rows


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"
