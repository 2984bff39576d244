"""Whether the peers of a group have called the same collective, and in what they differ. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence

from pccl.core.fields import CollectiveSpec
from pccl.core.text import names
from pccl.types import CollectiveKind, PeerId, short


def disagreement(votes: Mapping[PeerId, CollectiveSpec]) -> str:
    """Which peers asked for what, if not all asked for the same; empty if they did."""
    sides: dict[CollectiveSpec, list[PeerId]] = {}
    for peer, spec in votes.items():
        sides.setdefault(spec, []).append(peer)
    called = [f"{names(peers)} called it with {spec}" for spec, peers in sides.items()]
    return "; ".join(called) if len(sides) > 1 else ""


def different_results(digests: Mapping[PeerId, bytes]) -> str:
    """Which peers have which result, if not all have the same; empty if they do. Those without a digest have none."""
    camps: dict[bytes, list[PeerId]] = {}
    for peer, digest in digests.items():
        if digest:
            camps.setdefault(digest, []).append(peer)
    if len(camps) < 2:
        return ""
    sides = "; ".join(f"{names(peers)} got {digest.hex()[:8]}" for digest, peers in camps.items())
    return (
        f"its results differ between peers: {sides}. One of them has bad memory, or sent its neighbours different "
        "things; if it happens again, kick the peer whose camp is always another one"
    )


def rootless(votes: Iterable[CollectiveSpec], ring: Sequence[PeerId]) -> str:
    """Why a broadcast cannot run in this ring; empty if it can, or if it is another kind of collective."""
    roots = [spec.root for spec in votes if spec.kind is CollectiveKind.BROADCAST]
    strange = next((root for root in roots if root not in ring), None)
    if strange is None:
        return ""
    named = short(strange) if strange else "an empty id"
    return f"the root of a broadcast must be in the group, got {named}; name one of {names(ring)}"
