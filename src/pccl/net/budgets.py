"""What connections may make the master keep: unread answers, half frames, and what was read and not yet handled.

Owns the budgets of candidates and of members, and which connection goes when one is passed. Pure. Strangers need none:
each keeps 4 KiB at most (`wire/framing.py`; `UNPROVED_MAX` before a door of certificates), and their number is bounded
(`net/listening.py`). Must not know what the bytes are.
"""

from collections.abc import Iterable
from typing import NamedTuple

MIB = 1024 * 1024

UNPROVED_MAX = 32 * 1024
"""Bytes in all that a door of certificates takes of a connection which has proved nothing: a chain of certificates and
a first message take some KB. As many strangers as there may be, all of which send this much, cost 32 MiB."""

MEMBER_BACKLOG_MAX = 2 * MIB
"""Bytes kept for a member that does not read, besides the message at their end, which may be as large as messages get.

In a run of 1,000 peers a `Topology` takes 35 KB: this is a minute of them, one every second, so a peer that is out of
reach for as long as the master tolerates is not closed for it."""

CANDIDATE_BACKLOG_MAX = 64 * 1024
"""The same for one that is no member: it is sent a welcome, links, pings and words about its wait, some KB in all."""

MEMBERS_MAX = 1024 * MIB
"""Of all members together: 500 that are out of reach at once and at their limit, and the master's machine survives."""

CANDIDATES_MAX = 32 * MIB
"""Of all others together: 500 at their limit, or 4,096 with 8 KiB each. A flood of them takes nothing of what
members have."""

LOOK_AFTER = 4 * MIB
"""Bytes that came to be kept between two looks at all connections, which take some milliseconds for 4,096 of them: a
budget is passed by no more than this."""


class Kept(NamedTuple):
    """One connection, and what is kept for it."""

    connection: int
    member: bool
    nbytes: int


class Budgets:
    """When to look, and who goes."""

    def __init__(self) -> None:
        self._since = 0

    def add(self, nbytes: int) -> bool:
        """So many more bytes are kept, or may be; True when it is time to look."""
        self._since += nbytes
        return self._since >= LOOK_AFTER

    def excess(self, all_kept: Iterable[Kept]) -> list[Kept]:
        """The connections that must go, those that keep most of their kind, so that both kinds are within bounds."""
        self._since = 0
        left = {True: MEMBERS_MAX, False: CANDIDATES_MAX}
        gone: list[Kept] = []
        # Those that keep little come first and stay.
        for each in sorted(all_kept, key=lambda each: each.nbytes):
            if each.nbytes > left[each.member]:
                gone.append(each)
            else:
                left[each.member] -= each.nbytes
        return gone
