"""Calls that can never complete together. Pure functions.

A peer's main thread sits in one call at a time. In an *exclusive* call (such as `update_topology`) it can cast no other
vote, and it cannot enter one while it has other calls open. So if call B misses a voter that sits in call C, and C
misses a voter that sits in B, and one of them is exclusive, neither will ever complete: not slow, but wrong. Two
collectives with different tags are never certain to be wrong, since another thread may still launch the missing one.

Looking at pairs is enough. An exclusive call of all peers and the calls of one group cannot form a longer ring of
waiting without a contradicting pair in it: a peer that waits in a group's call is missing from every exclusive call.
"""

from collections.abc import Collection, Sequence

from msgspec import Struct

from pccl.core.rules.agreement import who_differs
from pccl.core.text import names
from pccl.types import PeerId


class OpenCall(Struct, frozen=True):
    """A ballot that waits for votes."""

    name: str
    exclusive: bool
    voters: Collection[PeerId]
    missing: Collection[PeerId]


def contradicting(calls: Sequence[OpenCall]) -> list[OpenCall]:
    """The calls that can never complete, in the order given."""
    return [call for call in calls if any(_contradict(call, other) for other in calls if other is not call)]


def _contradict(one: OpenCall, other: OpenCall) -> bool:
    return (one.exclusive or other.exclusive) and _misses(one, other) and _misses(other, one)


def _misses(one: OpenCall, other: OpenCall) -> bool:
    """A peer whose vote `one` needs sits in `other`."""
    return any(peer in other.voters for peer in one.missing)


def describe(calls: Sequence[OpenCall]) -> str:
    """Which peers wait in which call."""
    sides = "; ".join(f"{names(call.voters)} wait in {call.name}" for call in calls)
    sides += who_differs([call.voters for call in calls]) if len(calls) == 2 else ""  # A peer may wait in several.
    return f"these calls can never complete together: {sides}. All peers must make the same calls in the same order"
