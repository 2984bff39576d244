"""The live view of a run: what is on the screen at one moment, as lines of text.

Owns the choice and the order of what is shown. Must not know a terminal, nor where the status comes from.
"""

from typing import NamedTuple

from pccl.core.status import Status
from pccl.types import count_peers
from pccl.views.status import (
    HEAD,
    health,
    healthy,
    lanes_line,
    links_lines,
    long_waits,
    round_line,
    row,
    span,
    table,
    wait_line,
)

EVENTS_SHOWN = 8


class Line(NamedTuple):
    """A line, and how it is meant: `title`, `good`, `bad`, `faint` or nothing."""

    text: str
    style: str = ""


def screen(address: str, status: Status | None, trouble: list[str], height: int) -> list[Line]:
    """All lines. `trouble` says why there is no newer status; the last one is shown meanwhile."""
    lines = [Line(f"pccl top  {address}", "title")]
    lines += [Line(each, "bad") for each in trouble]
    if status is None:
        return lines
    accepted = sum(each.stage in ("accepted", "away") for each in status.peers)
    about = f"run {status.run}  epoch {status.epoch}  {count_peers(accepted)}  master up {span(status.age_s)}"
    lines += [Line(about), Line(health(status), "good" if healthy(status) else "bad")]
    lines += [Line(round_line(status, each)) for each in status.rounds[:4]]
    lines += [Line(lanes_line(status, each), "faint") for each in status.lanes[:4]]
    lines += [Line(f"waits: {wait_line(wait)}", "bad") for wait in long_waits(status)[:4]]
    lines += [Line(f"link: {each}", "bad") for each in links_lines(status)[:4]]
    events = [
        Line(f"{span(each.ago_s):>7} ago  {each.text}", "bad" if each.warns else "faint")
        for each in status.events[-EVENTS_SHOWN:]
    ]
    room = max(3, height - len(lines) - len(events) - 4)
    shown = status.peers[:room]
    head, *rows = table([HEAD, *map(row, shown)])
    lines += [Line(""), Line(head, "title"), *(Line(each) for each in rows)]
    if status.size > len(shown):
        lines.append(Line(f"… and {status.size - len(shown)} more", "faint"))
    return [*lines, Line(""), *events] if events else lines
