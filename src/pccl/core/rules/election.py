"""Whose shared state all peers of a group shall hold. A pure function of what they claim to hold.

The rules, in the order in which they are applied (protocol.md, Shared state 2):

0. Either all have ENFORCE_POPULAR, or each only sends or only receives. A mixture is refused: a peer that enforces what
   is popular does not expect to be overruled by a sender, nor a receiver to be asked.
1. States of peers that only receive, or hold a mixture of two states, cannot be elected.
2. If one of the peers that are left holds the last revision that the group agreed on, or the next one, then whatever
   is higher comes from another history and cannot be elected. If none does, all can: what was agreed on is lost, or all
   have gone on.
3. The highest revision wins, whatever the order of arrival: a peer that comes from a checkpoint beats any number of
   fresh ones.
4. Among equal revisions the content that most of these peers hold wins; among equally many, the one whose eldest holder
   came first into the run, so that a newcomer never overrules the peers that were there.
5. All other peers pull what was elected, except a peer that only sends: it is refused, and keeps what it has.
6. Once the group has agreed on a state, what only peers without the right to bring one hold cannot be elected while a
   peer with it offers what was agreed on or has gone on from there: one token may join as often as it likes, so its
   peers are no votes. Where only peers without the right are in step, none of them jumps: a revision counts only up to
   the one that most of them have reached. Trainers may sync once in hundreds of steps, so what is a jump follows from
   the others, not from the number. Nor may a peer without the right only send; and of equals one that has it wins.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, structs

from pccl.core.messages.to_master import SyncState
from pccl.core.text import names
from pccl.types import PeerId, SharedStateSyncStrategy

BARRED = (
    "this peer has no right to bring a state into a run that has agreed on one, so it may not only send; use a token "
    "that has the right to bring a state, or another strategy"
)
"""What such a peer reads."""

NO_OFFER = "no peer offers a shared state"
"""How the refusal begins when there is nothing to elect."""


class Elected(Struct, frozen=True):
    """The outcome: which peers hold what all shall hold, which lack it, and which are left out and why."""

    claim: SyncState | None
    """Of one of the holders; None if there is nothing to elect."""
    holders: tuple[PeerId, ...] = ()
    """Those that hold it and may give it to others."""
    content: tuple[PeerId, ...] = ()
    """Those that hold it and give nothing away."""
    pullers: tuple[PeerId, ...] = ()
    refused: tuple[tuple[PeerId, str], ...] = ()


def elect(claims: Mapping[PeerId, SyncState], agreed: int | None, unproved: Collection[PeerId] = ()) -> Elected:
    """Elect from these claims, given in the order of seniority, after `agreed` was the last revision agreed on. The
    unproved have no right to bring a state of another history."""
    unproved = () if agreed is None else unproved
    barred = [peer for peer in claims if peer in unproved and _only_sends(claims[peer])]
    # Those with the right come before the others, whatever their age: the first of equals wins.
    order = sorted((peer for peer in claims if peer not in barred), key=lambda peer: peer in unproved)
    elected = _elect({peer: claims[peer] for peer in order}, agreed, unproved)
    refused = (*elected.refused, *((peer, BARRED) for peer in barred))
    return structs.replace(elected, refused=refused)


def _elect(claims: Mapping[PeerId, SyncState], agreed: int | None, unproved: Collection[PeerId]) -> Elected:
    mixed = _mixed(claims)
    if mixed:
        return Elected(None, refused=tuple(dict.fromkeys(claims, mixed).items()))
    offers = _eligible(claims)
    eligible = _believed(offers, agreed, unproved)
    if not eligible:
        reason = (
            f"{NO_OFFER}: {names(claims)} only receive, by their strategy or because a failed sync "
            "or a prefetch left a mixture of two states. Load a checkpoint at one of them and set its revision"
        )
        return Elected(None, refused=tuple(dict.fromkeys(claims, reason).items()))
    winner = _most_popular(eligible)
    holders = tuple(peer for peer, claim in offers.items() if claim.state == winner.state)
    rest = {peer: claim for peer, claim in claims.items() if peer not in holders}
    content = tuple(peer for peer, claim in rest.items() if claim.state == winner.state)
    unwilling = [peer for peer, claim in rest.items() if _only_sends(claim) and peer not in content]
    refused = tuple((peer, _outvoted(winner, holders)) for peer in unwilling)
    pullers = tuple(peer for peer in rest if peer not in content and peer not in unwilling)
    return Elected(winner, holders, content, pullers, refused)


def _eligible(claims: Mapping[PeerId, SyncState]) -> dict[PeerId, SyncState]:
    receive_only = SharedStateSyncStrategy.RECEIVE_ONLY
    return {peer: claim for peer, claim in claims.items() if claim.strategy is not receive_only and not claim.torn}


def _mixed(claims: Mapping[PeerId, SyncState]) -> str:
    """Which strategies do not go together, and whose they are; empty if all do."""
    sides: dict[SharedStateSyncStrategy, list[PeerId]] = {}
    for peer, claim in claims.items():
        sides.setdefault(claim.strategy, []).append(peer)
    popular = sides.pop(SharedStateSyncStrategy.ENFORCE_POPULAR, [])
    if not popular or not sides:
        return ""
    others = " and ".join(f"{names(peers)} with {strategy.name}" for strategy, peers in sides.items())
    return (
        f"{names(popular)} called it with ENFORCE_POPULAR, {others}; pass ENFORCE_POPULAR at all peers of the group, "
        "or at none"
    )


def _believed(
    eligible: dict[PeerId, SyncState], agreed: int | None, unproved: Collection[PeerId]
) -> dict[PeerId, SyncState]:
    recent = {peer: claim for peer, claim in eligible.items() if agreed is not None and claim.revision >= agreed}
    if agreed is None or not any(peer in unproved for peer in recent):
        return _of_this_history(eligible, agreed)
    proved = [claim for peer, claim in recent.items() if peer not in unproved]
    reached = _most_held(proved or recent.values()).revision
    bound = -1 if proved else reached
    believed = {peer: claim for peer, claim in eligible.items() if peer not in unproved or claim.revision <= bound}
    return believed if reached > agreed + 1 else _of_this_history(believed, agreed)


def _of_this_history(eligible: dict[PeerId, SyncState], agreed: int | None) -> dict[PeerId, SyncState]:
    if agreed is None or not any(agreed <= claim.revision <= agreed + 1 for claim in eligible.values()):
        return eligible
    return {peer: claim for peer, claim in eligible.items() if claim.revision <= agreed + 1}


def _most_popular(eligible: Mapping[PeerId, SyncState]) -> SyncState:
    highest = max(claim.revision for claim in eligible.values())
    return _most_held(claim for claim in eligible.values() if claim.revision == highest)


def _most_held(claims: Iterable[SyncState]) -> SyncState:
    votes: dict[tuple[int, bytes, bytes], list[SyncState]] = {}
    for claim in claims:
        votes.setdefault(claim.state, []).append(claim)
    # Python's max keeps the first of equals, and the first is the one with the eldest holder.
    return max(votes.values(), key=len)[0]


def _only_sends(claim: SyncState) -> bool:
    return claim.strategy is SharedStateSyncStrategy.SEND_ONLY


def _outvoted(winner: SyncState, holders: tuple[PeerId, ...]) -> str:
    return (
        f"this peer only sends, but revision {winner.revision} of {names(holders)} was elected, and differs: peers "
        "that only send must hold the same"
    )
