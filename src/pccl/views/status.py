"""A `Status` in words: whether the run is healthy, and its lines for a person.

Owns the wording. Must not know where the status came from, nor how it is printed: names in it are text of others, so no
line of these is a format or markup.
"""

from typing import NamedTuple

from pccl.core.status import LanesStatus, PeerStatus, RoundStatus, Status, WaitStatus
from pccl.types import count_peers

LONG_S = 2.0
"""A shorter wait is part of training: peers are never exactly equally fast."""


class Row(NamedTuple):
    """One peer, as text."""

    rank: str
    name: str
    stage: str
    group: str
    machine: str
    address: str
    round_trip: str
    age: str


HEAD = Row("rank", "peer", "stage", "group", "machine", "address", "round trip", "here for")


def called(status: Status, peer: str) -> str:
    """`name (id8)`, or the first digits of the id alone."""
    name = next((each.name for each in status.peers if each.peer == peer), "")
    return f"{name} ({peer[:8]})" if name else peer[:8]


def long_waits(status: Status) -> list[WaitStatus]:
    """Those that a person should know of, the oldest first: bytes that move are no wait."""
    return sorted(
        (wait for wait in status.waits if wait.age_s >= LONG_S and not wait.works), key=lambda wait: -wait.age_s
    )


def healthy(status: Status) -> bool:
    """No peer waits long for another."""
    return not long_waits(status)


def health(status: Status) -> str:
    """In one line."""
    waits = long_waits(status)
    if waits:
        missing = list(dict.fromkeys(peer for wait in waits for peer in wait.missing))
        whom = ", ".join(called(status, peer) for peer in missing[:3]) or waits[0].sentence
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"waiting for {whom}{more}, for {span(waits[0].age_s)}"
    return "healthy" if status.peers else "no peers yet"


def summary(status: Status) -> str:
    """The run in one line."""
    accepted = sum(each.stage in ("accepted", "away") for each in status.peers)
    others = len(status.peers) - accepted
    outside = f" and {others} more connected" if others else ""
    return f"run {status.run}, epoch {status.epoch}: {count_peers(accepted)}{outside}; {health(status)}"


def round_line(status: Status, last: RoundStatus) -> str:
    """The same words as in the log of a peer."""
    waited = f", waited {last.waited_s:.1f} s for {called(status, last.waited_for)}" if last.waited_s >= 0.05 else ""
    group = f" of group {last.group}" if len(status.rounds) > 1 else ""
    rate = f", {last.mbps:.0f} Mbit/s" if last.bytes else ""
    here = count_peers(last.peers)
    return f"round {last.number}{group}: {here}, {last.seconds:.1f} s{waited}{rate}; {span(last.ago_s)} ago"


def lanes_line(status: Status, told: LanesStatus) -> str:
    """How many a link has, and why."""
    group = f" of group {told.group}" if len(status.lanes) > 1 else ""
    return f"lanes{group}: {told.lanes} a link ({told.reason})"


def wait_line(wait: WaitStatus) -> str:
    """What is waited for, how long, and what limits it."""
    bound = "no limit while they answer" if wait.bound_s is None else f"for {span(wait.bound_s)} more at most"
    return f"{wait.sentence}; for {span(wait.age_s)} ({bound})"


def row(peer: PeerStatus) -> Row:
    """One line of the table."""
    where = f"{peer.announced or peer.seen}:{peer.port}"
    if peer.announced and peer.seen and peer.announced != peer.seen:
        where += f" (seen {peer.seen})"
    trip = "" if peer.round_trip_s is None else f"{peer.round_trip_s * 1e3:.1f} ms"
    rank = "" if peer.rank is None else str(peer.rank)
    name = f"{peer.name} ({peer.peer[:8]})" if peer.name else peer.peer[:8]
    name += f", party {peer.party}" if peer.party else ""
    process = f"{peer.machine} {peer.pid}" if peer.pid else peer.machine
    return Row(rank, name, peer.stage, str(peer.group), process, where, trip, span(peer.age_s))


def links_lines(status: Status) -> list[str]:
    """Links that do not stand, and why: those that do need no line."""
    return [
        f"{called(status, link.dialler)} dials {called(status, link.target)}: {link.stage}"
        + (f" ({link.cause})" if link.cause else "")
        for link in status.links
        if link.stage != "standing"
    ]


def table(rows: list[Row], width: int | None = None) -> list[str]:
    """Columns of plain text."""
    widths = [max(len(each[column]) for each in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(widths[place]) for place, cell in enumerate(each)).rstrip() for each in rows]
    return [line[:width] for line in lines]


def lines(status: Status) -> list[str]:
    """All of it, for a person."""
    told = [summary(status)]
    told += [round_line(status, each) for each in status.rounds]
    told += [lanes_line(status, each) for each in status.lanes]
    told += [f"waits: {wait_line(wait)}" for wait in long_waits(status)]
    told += [f"link: {line}" for line in links_lines(status)]
    if status.peers:
        told += ["", *table([HEAD, *map(row, status.peers)])]
    if status.size > len(status.peers):
        told.append(f"… and {status.size - len(status.peers)} more")
    return told


def span(seconds: float) -> str:
    """A time in the unit that a person would use."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
