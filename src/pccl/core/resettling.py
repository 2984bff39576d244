"""How a master goes on with a run that it did not begin: roster, links, collectives and answers, as the peers tell.

Whatever the last master decided and told anybody who is here holds for all who are here. What it did not decide, or
told nobody, is decided anew, by the rules that hold in any run: a collective that everybody here has finished is
committed, one that runs goes on, one that somebody failed at or never started is aborted. Votes that are open count as
cast. Numbers of epochs, links and attempts start beyond all that anybody was told of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pccl.core.ballot import names
from pccl.core.collectives import LifeStage
from pccl.core.election import Claim
from pccl.core.messages import (
    Agreed,
    Initiate,
    Outcome,
    PendingAnswer,
    RefusedSync,
    Resumed,
    RunReport,
    Synced,
    TopologyUpdated,
    TransferReport,
    Welcome,
)
from pccl.core.outbox import clip
from pccl.core.ring import Pair, pair
from pccl.core.roster import Member
from pccl.core.violation import Violation
from pccl.types import PeerId, SharedStateSyncStrategy, short

if TYPE_CHECKING:
    from pccl.core.master import Master
    from pccl.core.muster import Muster, Return

SALTS = 1000
"""Parts into which the numbers of one step are cut. Two masters that follow the same one, of which the second hears
nothing of the first, most likely begin in different parts: nobody finds its number on something else."""

EPOCHS_APART = 1_000_000
NUMBERS_APART = 2**50
"""One step: more than a master gives in its life of what nobody who came back has heard of."""


def beyond(highest: int, apart: int, salt: int) -> int:
    """A number above all that the last master gave, of which the highest that is known is this one."""
    return (highest // apart + 1) * apart + salt % SALTS * (apart // SALTS)


def resettle(master: Master, muster: Muster, now: float) -> None:
    """Go on with the run of these peers."""
    stories = [ret for ret in muster.back.values() if ret is not None]
    lost = muster.missing
    _restore_roster(master, muster, stories, now)
    _restore_links(master, stories, now)
    for ret in stories:
        master.outbox.send((ret.member.peer,), resumed(master, ret.member))
    returned = [ret.member.peer for ret in stories]
    everybody = (*master.roster.accepted, *master.roster.candidates, *master.roster.visitors)
    newcomers = [peer for peer in everybody if peer not in returned]
    master.outbox.send(newcomers, Welcome(master.run, master.limits.tags_max, master.name))
    master.admission.push()
    for group in master.roster.rings:
        master.admission.rewire(group, now)
    master.outbox.ping(master.roster.accepted, now)
    without = f" without {names(lost)}" if lost else ""
    master.outbox.note(
        f"epoch {master.roster.epoch}: the run {master.run} goes on{without}; {len(master.roster.accepted)} peers"
    )
    odd: dict[PeerId, str] = {}
    for group in list(master.roster.rings):
        told = [ret for ret in stories if ret.member.group == group]
        missing = [peer for peer in muster.rings[group] if peer not in muster.back]
        odd.update(_settle_collectives(master, told, missing, now))
        _settle_sync(master, group, told, now)
    _settle_ballots(master, stories, now)
    for peer, reason in odd.items():
        member = master.roster.member(peer)
        if member is not None:
            master.expel(member, reason, now)


def resumed(master: Master, member: Member) -> Resumed:
    """What takes a member back."""
    return Resumed(master.limits.tags_max, master.name, member.story)


def _restore_roster(master: Master, muster: Muster, stories: list[Return], now: float) -> None:
    roster, salt = master.roster, int.from_bytes(master.name.encode())
    master.run = muster.run
    epoch = beyond(max(muster.epoch, roster.epoch), EPOCHS_APART, salt)
    master.name = f"{master.name.partition('.')[0]}.{epoch}"
    numbers = [ret.resume.last_number for ret in stories]
    roster.updated = max(ret.resume.topology for ret in stories)
    roster.number = beyond(max([roster.number, *numbers]), NUMBERS_APART, salt)
    master.wiring.count_from(beyond(max(ret.resume.last_link for ret in stories), NUMBERS_APART, salt))
    rings = {group: tuple(peer for peer in ring if peer in muster.back) for group, ring in muster.rings.items()}
    for group in rings:
        told = [ret for ret in stories if ret.member.group == group]
        linked = [link.lanes for ret in told for link in ret.links.values()]
        asked = [ret.resume.lanes for ret in told if ret.resume.lanes]
        roster.lanes[group] = next(iter(linked + asked), master.limits.default_lanes)
    roster.restore({group: ring for group, ring in rings.items() if ring}, epoch)


def _restore_links(master: Master, stories: list[Return], now: float) -> None:
    """Links that both ends have stand; the others are unknown, so that their ends close them."""
    ends: dict[tuple[int, Pair], list[Return]] = {}
    for ret in stories:
        master.wiring.assume(ret.member.peer)
        for number, link in ret.links.items():
            ends.setdefault((number, pair(ret.member.peer, PeerId(link.peer))), []).append(ret)
    for (number, both), told in ends.items():
        if len(told) != 2 or both[0] == both[1]:
            continue
        one, other = told
        same_group = one.member.group == other.member.group
        diallers = [ret.member.peer for ret in told if ret.links[number].dial]
        if same_group and len(diallers) == 1 and one.links[number].lanes == master.roster.lanes[one.member.group]:
            adopted = master.wiring.adopt(one.member.group, number, (both, diallers[0]), now)
            adopted.round_trip_s = max(ret.links[number].round_trip_us for ret in told) / 1e6


# ── collectives ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _settle_collectives(master: Master, told: list[Return], missing: list[PeerId], now: float) -> dict[PeerId, str]:
    """Those of one group, one way for all; whoever's story contradicts that is returned."""
    outcomes: dict[int, bool] = {}
    for ret in told:
        for attempt, committed in ret.outcomes.items():
            outcomes[attempt] = outcomes.get(attempt, False) or committed
    started: dict[int, dict[PeerId, RunReport]] = {}
    for ret in told:
        for tag, run in ret.runs.items():
            if run.attempt:
                started.setdefault(tag, {})[ret.member.peer] = run
    odd: dict[PeerId, str] = {}
    settled: dict[int, dict[PeerId, RunReport]] = {}
    """By tag, those who have not started it, and whose vote this settles."""
    for tag, runs in started.items():
        attempt = max(run.attempt for run in runs.values())
        odd.update({peer: _contradiction(tag) for peer, run in runs.items() if run.attempt != attempt})
        runs = {peer: run for peer, run in runs.items() if run.attempt == attempt}
        voters = {ret.member.peer: ret.runs[tag] for ret in told if tag in ret.runs and not ret.runs[tag].attempt}
        # Whoever knows how this attempt ended has voted for the next one.
        unaware = {
            ret.member.peer: ret.runs[tag] for ret in told if ret.member.peer in voters and attempt not in ret.outcomes
        }
        ignorant = len(runs) + len(voters) < len(master.roster.ring(told[0].member.group))
        lost = _lost(master, runs.values(), missing)
        over = all(run.over for run in runs.values())
        finished = over and not any(run.cause for run in runs.values())
        if outcomes.get(attempt) or (attempt not in outcomes and finished and not voters and not ignorant):
            odd.update({peer: _contradiction(tag) for peer, run in runs.items() if not run.over or run.cause})
            master.outbox.send(runs, Outcome(tag, attempt, True, "", tuple(lost)))
            continue
        reason = _why_aborted(runs, lost, bool(voters) or ignorant or attempt in outcomes)
        if attempt in outcomes and over:
            settled[tag] = unaware
            master.outbox.send(runs | unaware, Outcome(tag, attempt, False, clip(reason), tuple(lost)))
            continue
        _adopt(master, runs | voters, lost, reason, now)
        settled[tag] = voters
    for ret in told:
        for run in ret.runs.values():
            if not run.attempt and ret.member.peer not in settled.get(run.tag, ()):
                _vote(master, ret, run, odd, now)
    return odd


def _why_aborted(runs: dict[PeerId, RunReport], lost: list[PeerId], unheard: bool) -> str:
    """Why an attempt cannot be committed; empty if it can, when those who still run it have finished."""
    for peer, run in runs.items():
        if run.cause:
            return f"failed at {short(peer)}: {run.cause}"
    if lost and not all(run.over for run in runs.values()):
        return f"{names(lost)} were lost with the master"
    return "the master was lost when not everybody had heard of its start or its end" if unheard else ""


def _adopt(master: Master, runs: dict[PeerId, RunReport], lost: list[PeerId], reason: str, now: float) -> None:
    """Go on with an attempt that has no outcome yet, or with its abortion."""
    started = next(run for run in runs.values() if run.attempt)
    group = master.roster.accepted[next(iter(runs))].group
    here = tuple(peer for peer in master.roster.ring(group) if peer in runs)
    life = master.collectives.new_life(group, started.tag, now)
    life.stage, life.attempt, life.lanes = LifeStage.RUNNING, started.attempt, started.lanes
    life.ring, life.lost = (*here, *lost), list(lost)
    life.unreported = {peer: None for peer in here if runs[peer].attempt and not runs[peer].over}
    for peer in here:
        life.ballot.cast(peer, runs[peer].spec, now)
    master.collectives.adopt(life, reason, now)


def _lost(master: Master, runs: Iterable[RunReport], missing: list[PeerId]) -> list[PeerId]:
    """Who took part and is not here."""
    told = (PeerId(peer) for run in runs for peer in run.lost)
    return [peer for peer in dict.fromkeys((*told, *missing)) if peer not in master.roster.accepted]


def _vote(master: Master, ret: Return, run: RunReport, odd: dict[PeerId, str], now: float) -> None:
    try:
        master.collectives.initiate(ret.member, Initiate(run.tag, run.spec), 0, now)
    except Violation as violation:
        odd[ret.member.peer] = f"it broke the protocol: {violation}"


def _contradiction(tag: int) -> str:
    return f"what it says about the collective with tag {tag} contradicts what others were told"


# ── ballots ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settle_ballots(master: Master, stories: list[Return], now: float) -> None:
    """Who waits for an answer that somebody else has got is given it; who waits for another has voted for it."""
    updated = master.roster.updated
    asked = max((ret.resume for ret in stories), key=lambda resume: resume.asked)
    for ret in stories:
        me, resume = ret.member.peer, ret.resume
        if resume.updating and updated > max(resume.accepted_at, resume.updated):
            master.outbox.send((me,), TopologyUpdated(updated))
        elif resume.updating:
            master.admission.ballot.cast(me, None, now)
        if resume.asking and asked.asked > max(resume.accepted_at, resume.asked):
            master.outbox.send((me,), PendingAnswer(asked.pending, asked.asked))
        elif resume.asking:
            master.pending.cast(me, None, now)


def _settle_sync(master: Master, group: int, told: list[Return], now: float) -> None:
    """The same for a group's shared state. Whoever is still at a transfer ends it by itself, and calls again."""
    known = [ret.resume.agreed for ret in told if ret.resume.agreed is not None]
    agreed = max(known, key=lambda each: each.attempt, default=None)
    if agreed is not None:
        claim = Claim(agreed.revision, SharedStateSyncStrategy.ENFORCE_POPULAR, agreed.layout, agreed.content)
        holders = tuple(ret.member.peer for ret in told if ret.resume.agreed == agreed)
        master.syncs.restore(group, claim, holders)
    for ret in told:
        vote, me, before = ret.resume.claim, ret.member.peer, ret.resume.agreed
        if vote is None or ret.resume.transfer is TransferReport.RUNNING:
            continue
        answered_at = max(ret.resume.accepted_at, 0 if before is None else before.attempt)
        if agreed is not None and agreed.attempt > answered_at:
            master.outbox.send((me,), _sync_answer(ret, agreed))
        elif ret.resume.transfer is TransferReport.NONE:
            master.syncs.vote(ret.member, vote, now)
        else:
            master.outbox.send((me,), RefusedSync(False, "the master was lost in the middle of it; call it again"))


def _sync_answer(ret: Return, agreed: Agreed) -> Synced | RefusedSync:
    claim = ret.resume.claim
    same = claim is not None and (claim.revision, claim.layout, claim.content) == (
        agreed.revision,
        agreed.layout,
        agreed.content,
    )
    if same or ret.resume.transfer is TransferReport.HELD:
        return Synced(agreed.attempt, agreed.revision)
    return RefusedSync(True, f"the group agreed on revision {agreed.revision}, and not on what this peer holds")
