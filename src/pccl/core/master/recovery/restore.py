"""What a master makes of a run that it did not begin: roster, links, collectives and answers, from the peers' reports.

`restore` is a pure function from the census to a value, which the master applies in one place. What the last master
decided and any peer here has received holds for all who are here. What it did not decide, or no peer here received, is
decided again, by the rules of any run: a collective that all have finished is committed, one that runs goes on, one
that failed at a peer or never started at one is aborted. Open votes are returned as the messages that cast them.
Numbers of epochs, links and attempts start beyond all that any peer was told of.

Rules: docs/recovery.md, "What is restored".
"""

from collections.abc import Iterable, Mapping

from pccl.core.master.recovery.census import Census, Returned
from pccl.core.master.recovery.restored import Base, Restored, RestoredAttempt, RestoredLink
from pccl.core.messages.report import Agreed, AttemptReport, TransferReport
from pccl.core.messages.to_master import AskPending, Initiate, SyncState, VoteTopology
from pccl.core.messages.to_peer import Outcome, PendingAnswer, RefusedSync, Synced, TopologyUpdated
from pccl.core.rules.agreement import different_results
from pccl.core.rules.ring import Pair, pair
from pccl.core.text import clip, names
from pccl.types import PeerId, SharedStateSyncStrategy, short, tag_name

SALTS = 1000
"""Parts into which the numbers of one step are cut. Two masters that follow the same one, of which the second receives
nothing of the first, most likely begin in different parts: no peer finds a number of one on something of the other."""

EPOCHS_APART = 1_000_000
NUMBERS_APART = 2**50
"""One step: more than a master gives in its life of what no peer that came back has received."""


def beyond(highest: int, apart: int, salt: int) -> int:
    """A number above all that the last master gave, of which the highest that is known is this one."""
    return (highest // apart + 1) * apart + salt % SALTS * (apart // SALTS)


def restore(census: Census, base: Base) -> Restored:
    """The run of these peers."""
    reports = census.reports
    salt = int.from_bytes(base.name.encode())
    epoch = beyond(max(census.epoch, base.epoch), EPOCHS_APART, salt)
    rings = {group: tuple(peer for peer in ring if peer in census.back) for group, ring in census.rings.items()}
    rings = {group: ring for group, ring in rings.items() if ring}
    by_group = {group: [each for each in reports if each.member.group == group] for group in rings}
    lanes = {group: _lanes(by_group[group], base.default_lanes) for group in rings}
    restored = Restored(
        run=census.run,
        name=f"{base.name.partition('.')[0]}.{epoch}",
        epoch=epoch,
        number=beyond(max([base.number, *(each.resume.answered.last_number for each in reports)]), NUMBERS_APART, salt),
        updated=max(each.resume.answered.topology for each in reports),
        last_link=beyond(max(each.resume.last_link for each in reports), NUMBERS_APART, salt),
        rings=rings,
        lanes=lanes,
        lost=census.missing,
        returned=tuple(each.member.peer for each in reports),
        links=_links(reports),
    )
    for group, ring in rings.items():
        missing = [peer for peer in census.rings[group] if peer not in census.back]
        _settle_collectives(restored, by_group[group], ring, missing)
        _settle_sync(restored, group, by_group[group])
    _settle_ballots(restored, reports)
    return restored


def _lanes(reports: list[Returned], default: int) -> int:
    """Lanes per link of a group, or the least that it has: what its members asked for."""
    linked = [link.lanes for each in reports for link in each.links.values()]
    return next((each.member.lanes for each in reports if each.member.lanes), min([default, *linked]))


def _links(reports: list[Returned]) -> list[RestoredLink]:
    """Links that both ends report stand; the others are unknown, so that their ends close them. A pair has one link and
    a link one number, whatever is reported: no honest peer reports anything else."""
    ends: dict[tuple[int, Pair], list[Returned]] = {}
    for each in reports:
        for number, link in each.links.items():
            ends.setdefault((number, pair(each.member.peer, link.peer)), []).append(each)
    numbers: set[int] = {0}
    pairs: set[Pair] = set()
    links = []
    for (number, both), reporters in ends.items():
        group = reporters[0].member.group
        diallers = [each.member.peer for each in reporters if each.links[number].dial]
        at_both_ends = len(reporters) == 2 and both[0] != both[1] and reporters[1].member.group == group
        as_agreed = len(diallers) == 1 and len({each.links[number].lanes for each in reporters}) == 1
        if at_both_ends and as_agreed and number not in numbers and both not in pairs:
            numbers.add(number)
            pairs.add(both)
            round_trip_us = max(each.links[number].round_trip_us for each in reporters)
            lanes = reporters[0].links[number].lanes
            links.append(RestoredLink(group, number, both, diallers[0], round_trip_us / 1e6, lanes))
    return links


# ── collectives ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _settle_collectives(
    restored: Restored, reports: list[Returned], ring: tuple[PeerId, ...], missing: list[PeerId]
) -> None:
    """The collectives of one group, each in one way for all its peers (docs/recovery.md, "What is restored")."""
    outcomes: dict[int, bool] = {}
    tags: dict[int, dict[PeerId, AttemptReport]] = {}
    for each in reports:
        for attempt, committed in each.outcomes.items():
            outcomes[attempt] = outcomes.get(attempt, False) or committed
        for tag, report in each.attempts.items():
            tags.setdefault(tag, {})[each.member.peer] = report
    outcomes_of = {each.member.peer: each.outcomes for each in reports}
    settled: dict[int, dict[PeerId, AttemptReport]] = {}
    """By tag, the peers that have not started it and whose vote its last attempt settles."""
    for tag, reported in tags.items():
        attempt = max(report.attempt for report in reported.values())
        if not attempt:
            continue
        odd = [peer for peer, report in reported.items() if report.attempt not in (0, attempt)]
        started = {peer: report for peer, report in reported.items() if report.attempt == attempt}
        voters = {peer: report for peer, report in reported.items() if not report.attempt}
        everywhere, over = len(started) == len(ring), all(report.over for report in started.values())
        unfinished = [peer for peer, report in started.items() if not report.over or report.cause]
        lost = _lost(ring, started.values(), missing)
        if outcomes.get(attempt, everywhere and not unfinished and not different_results(_digests(started))):
            odd += unfinished
            restored.answers.append((tuple(started), Outcome(tag, attempt, True, "", lost)))
        else:
            reason = _why_aborted(started, lost, everywhere and attempt not in outcomes)
            if attempt in outcomes and over:
                # A peer that knows how this attempt ended has voted for the next one.
                settled[tag] = {peer: voters[peer] for peer in voters if attempt not in outcomes_of[peer]}
                callers = (*started, *settled[tag])
                restored.answers.append((callers, Outcome(tag, attempt, False, clip(reason), lost)))
            else:
                settled[tag] = voters
                restored.attempts.append(_attempt(started | voters, ring, lost, reason))
        restored.odd.update(dict.fromkeys(odd, f"what it reports of {tag_name(tag)} contradicts what others report"))
    for each in reports:
        votes = [report for report in each.attempts.values() if not report.attempt]
        open_votes = [report for report in votes if each.member.peer not in settled.get(report.tag, ())]
        restored.votes += [(each.member.peer, Initiate(report.tag, report.spec)) for report in open_votes]


def _why_aborted(started: Mapping[PeerId, AttemptReport], lost: tuple[PeerId, ...], received: bool) -> str:
    """Why an attempt cannot be committed; empty if it can, when it has finished everywhere. `received`: all peers have
    received its start, and none an end."""
    for peer, report in started.items():
        if report.cause:
            return f"failed at {short(peer)}: {report.cause}"
    if lost and not all(report.over for report in started.values()):
        return f"{names(lost)} were lost with the master"
    if difference := different_results(_digests(started)):
        return difference
    return "" if received else "the master was lost when not all peers had received its start or its end"


def _attempt(
    reported: Mapping[PeerId, AttemptReport], ring: tuple[PeerId, ...], lost: tuple[PeerId, ...], reason: str
) -> RestoredAttempt:
    """An attempt that goes on, or whose abortion does."""
    started = next(report for report in reported.values() if report.attempt)
    here = [peer for peer in ring if peer in reported]
    unreported = tuple(peer for peer in here if reported[peer].attempt and not reported[peer].over)
    votes = {peer: reported[peer].spec for peer in here}
    digests = _digests(reported)
    return RestoredAttempt(started.tag, started.attempt, started.lanes, votes, lost, unreported, digests, reason)


def _digests(reported: Mapping[PeerId, AttemptReport]) -> dict[PeerId, bytes]:
    return {peer: report.digest for peer, report in reported.items() if report.attempt and report.over}


def _lost(ring: tuple[PeerId, ...], started: Iterable[AttemptReport], missing: list[PeerId]) -> tuple[PeerId, ...]:
    """The peers that took part and are not here."""
    reported = (peer for report in started for peer in report.lost)
    return tuple(peer for peer in dict.fromkeys((*reported, *missing)) if peer not in ring)


# ── ballots ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settle_ballots(restored: Restored, reports: list[Returned]) -> None:
    """A peer that waits for an answer that another has received gets it; one that waits for another has voted."""
    updated = restored.updated
    asked = max((each.resume.answered for each in reports), key=lambda answered: answered.asked)
    for each in reports:
        peer, resume, had = each.member.peer, each.resume, each.resume.answered
        if resume.updating and updated > max(had.accepted_at, had.updated):
            restored.answers.append(((peer,), TopologyUpdated(updated)))
        elif resume.updating:
            restored.votes.append((peer, VoteTopology()))
        if resume.asking and asked.asked > max(had.accepted_at, had.asked):
            restored.answers.append(((peer,), PendingAnswer(asked.pending, asked.asked)))
        elif resume.asking:
            restored.votes.append((peer, AskPending()))


def _settle_sync(restored: Restored, group: int, reports: list[Returned]) -> None:
    """The same for a group's shared state. A transfer that runs is refused: not all of its parts may have started."""
    known = [each.resume.sync.agreed for each in reports if each.resume.sync.agreed is not None]
    agreed = max(known, key=lambda each: each.attempt, default=None)
    if agreed is not None:
        claim = SyncState(agreed.revision, SharedStateSyncStrategy.ENFORCE_POPULAR, agreed.layout, agreed.content)
        restored.agreed[group] = claim, tuple(each.member.peer for each in reports if each.resume.sync.agreed == agreed)
    for each in reports:
        peer, sync = each.member.peer, each.resume.sync
        if sync.claim is None:
            continue
        answered_at = max(each.resume.answered.accepted_at, 0 if sync.agreed is None else sync.agreed.attempt)
        under_way = sync.transfer is TransferReport.RUNNING
        if agreed is not None and agreed.attempt > answered_at and not under_way:
            held = sync.transfer is TransferReport.HELD
            restored.answers.append(((peer,), _sync_answer(agreed, sync.claim, held)))
        elif sync.transfer is TransferReport.NONE:
            restored.votes.append((peer, sync.claim))
        else:
            again = RefusedSync(False, "the master was lost in the middle of it; call it again")
            restored.answers.append(((peer,), again))


def _sync_answer(agreed: Agreed, claim: SyncState, held: bool) -> Synced | RefusedSync:
    if held or (claim.revision, claim.layout, claim.content) == (agreed.revision, agreed.layout, agreed.content):
        return Synced(agreed.attempt, agreed.revision, agreed.ticket)
    return RefusedSync(True, f"the group agreed on revision {agreed.revision}, and not on what this peer holds")
