"""What a stress drill shows: a table while it runs, a report at its end.

Owns the words and their layout. On a terminal the table is drawn over itself, by rich where that is installed;
elsewhere a line comes now and then.
"""

import time
from collections import Counter
from typing import IO, Protocol

from tests.stress.drill import Drill

TABLE_S = 0.5
"""Between two tables: as often as an eye can follow."""

LINE_S = 10.0
"""Between two lines where no table can be drawn."""

COLUMNS = ("peer", "stage", "phase", "step", "quiet", "fate")
WIDTHS = (20, 10, 20, 8, 7, 40)

Row = tuple[str, ...]


class Painter(Protocol):
    """Draws a headline and a table over what it drew before."""

    every_s: float

    def draw(self, headline: str, rows: list[Row]) -> None: ...

    def clear(self) -> None: ...


class Lines:
    """The headline alone, again and again."""

    every_s = LINE_S

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def draw(self, headline: str, rows: list[Row]) -> None:
        print(headline, file=self._out, flush=True)

    def clear(self) -> None:
        """Lines stay."""


class PlainTable:
    """A table that any terminal can show."""

    every_s = TABLE_S

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._lines_drawn = 0

    def draw(self, headline: str, rows: list[Row]) -> None:
        cells = [[cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=True)] for row in (COLUMNS, *rows)]
        lines = [headline, *(f"  {' '.join(row)}".rstrip() for row in cells)]
        self.clear()
        print("\n".join(line[:119] for line in lines), file=self._out, flush=True)
        self._lines_drawn = len(lines)

    def clear(self) -> None:
        if self._lines_drawn:
            print(f"\x1b[{self._lines_drawn}F\x1b[J", end="", file=self._out)
            self._lines_drawn = 0


class RichTable:
    """The same by rich, which knows how wide the terminal is. Raises `ImportError` where it is not installed."""

    every_s = TABLE_S

    def __init__(self, out: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=out), auto_refresh=False, transient=True)
        self._live.start()

    def draw(self, headline: str, rows: list[Row]) -> None:
        from rich.table import Table

        table = Table(*COLUMNS, title=headline, title_justify="left")
        for row in rows:
            table.add_row(*row)
        self._live.update(table, refresh=True)

    def clear(self) -> None:
        self._live.stop()


def choose_painter(out: IO[str]) -> Painter:
    """The best that there is for this stream."""
    if not out.isatty():
        return Lines(out)
    try:
        return RichTable(out)
    except ImportError:
        return PlainTable(out)


class Show:
    """Shows one drill on a stream."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._painter = choose_painter(out)
        self._next_at = 0.0

    def tick(self, drill: Drill) -> None:
        """Show how it goes, if it is time."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + self._painter.every_s
            self._painter.draw(_headline(drill), _rows(drill))

    def report(self, drill: Drill, replay: str) -> None:
        """The end of the story."""
        self._painter.clear()
        score = drill.referee.score
        committed, aborted = sum(score.committed.values()), sum(score.aborted.values())
        seconds = time.monotonic() - drill.began_at
        lines = [
            f"seed {drill.options.seed}: {drill.score_kills} kills, {score.joins} joins in {seconds:.0f} s",
            f"  kills by kind         {_counts(score.kills)}",
            f"  kills by phase        {_counts(score.phases)}",
            f"  stops                 {_counts(score.others)}",
            f"  cuts                  {_counts(drill.fleet.cuts)}",
            f"  kicked and back again {score.kicks}",
            f"  master restarts       {drill.fleet.masters - 1}",
            f"  steps                 {score.steps}",
            f"  calls committed       {committed}: {_counts(score.committed)}",
            f"  calls aborted         {aborted}: {_counts(score.aborted)}; {score.alone} found no other peer",
            f"  results compared      {score.compared} between peers, each checked against the exact sum",
            f"  longest call          {score.longest_call_s:.2f} s (bound {drill.referee.bound_s:g} s)",
            f"  longest pause         {score.longest_pause_s:.2f} s between the ends of two steps "
            f"(bound {drill.referee.pause_bound_s:g} s)",
        ]
        if drill.options.master:
            lines.append(
                f"  both bounds           +{drill.options.restart_s:g} s for each further master killed meanwhile"
            )
        if drill.referee.broken:
            lines += ["", f"BROKEN: {len(drill.referee.broken)}", *(f"  {what}" for what in drill.referee.broken)]
            lines += [f"  all logs: {drill.fleet.logs}", f"  the same faults again: {replay}"]
        elif drill.interrupted:
            lines.append(
                "  INTERRUPTED: nothing had broken until then; whether all go on after the faults was not seen"
            )
        else:
            lines.append("  nothing broke, and no peer was lost that was not killed")
        print("\n".join(lines), file=self._out, flush=True)


def _headline(drill: Drill) -> str:
    score = drill.referee.score
    return (
        f"[{time.monotonic() - drill.began_at:6.1f} s] {drill.state}: step {score.steps}, {drill.score_kills} kills, "
        f"{sum(score.others.values())} stops, {sum(drill.fleet.cuts.values())} cuts, "
        f"{drill.fleet.masters - 1} master restarts; "
        f"{sum(score.committed.values())} calls committed, {sum(score.aborted.values())} aborted, "
        f"longest pause {score.longest_pause_s:.2f} s"
    )


def _rows(drill: Drill) -> list[Row]:
    now = time.monotonic()
    rows: list[Row] = []
    for peer in drill.fleet.peers:
        if peer.stage not in ("starting", "spare"):
            fate = "stopped" if peer.stopped else peer.doomed and f"to die {peer.doomed}"
            rows.append((peer.name, peer.stage, peer.phase, str(peer.step), f"{now - peer.heard_at:.1f}s", fate))
    return rows


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"
