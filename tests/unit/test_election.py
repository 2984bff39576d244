"""Whose shared state wins: each rule by itself, and all of them against a plain reading of the text."""

from itertools import product

import pytest

from pccl.core.rules.election import SyncState, elect
from pccl.types import PeerId, SharedStateSyncStrategy

POPULAR = SharedStateSyncStrategy.ENFORCE_POPULAR
RECEIVE = SharedStateSyncStrategy.RECEIVE_ONLY
SEND = SharedStateSyncStrategy.SEND_ONLY


def claim(revision, word, strategy=POPULAR, layout="layout", torn=False):
    return SyncState(revision, strategy, layout.encode(), word.encode(), torn)


def claims(*each):
    """In the order of seniority: anna, bert, carl, dora, emil."""
    return dict(zip(map(PeerId, ("anna", "bert", "carl", "dora", "emil")), each, strict=False))


def outcome(elected):
    word = elected.claim.content.decode() if elected.claim else None
    return word, list(elected.holders), list(elected.pullers), [peer for peer, _ in elected.refused]


def test_in_step_nobody_pulls():
    same = claim(3, "x")
    assert outcome(elect(claims(same, same, same), 2)) == ("x", ["anna", "bert", "carl"], [], [])
    assert outcome(elect(claims(same, same), 3)) == ("x", ["anna", "bert"], [], [])  # the same revision once more


def test_a_checkpoint_beats_any_number_of_fresh_ones():
    fresh = claim(0, "fresh")
    for place in range(4):
        voters = [fresh] * 4
        voters[place] = claim(13, "saved")
        word, holders, pullers, _ = outcome(elect(claims(*voters), None))
        assert (word, len(holders), len(pullers)) == ("saved", 1, 3)


def test_the_most_popular_content_wins_among_equal_revisions():
    odd, popular = claim(5, "odd"), claim(5, "popular")
    assert outcome(elect(claims(odd, popular, popular), 4)) == ("popular", ["bert", "carl"], ["anna"], [])


def test_the_eldest_decides_a_tie():
    assert outcome(elect(claims(claim(5, "b"), claim(5, "a")), 4))[0] == "b"
    assert outcome(elect(claims(claim(5, "a"), claim(5, "b")), 4))[0] == "a"


def test_a_revision_from_another_history_does_not_win():
    elected = elect(claims(claim(4, "ours"), claim(9, "theirs"), claim(9, "theirs")), 4)
    assert outcome(elected) == ("ours", ["anna"], ["bert", "carl"], [])


def test_one_that_nobody_can_match_is_all_there_is():
    """Everybody came back from a later checkpoint: then that is the history."""
    elected = elect(claims(claim(9, "x"), claim(9, "x")), 4)
    assert outcome(elected) == ("x", ["anna", "bert"], [], [])


def test_a_mixture_of_two_states_is_sent_to_no_peer():
    """Whatever the peer that holds it says: an honest one does not offer it, but this is what all would hold."""
    word, holders, pullers, refused = outcome(
        elect(claims(claim(7, "torn", SEND, torn=True), claim(3, "x", SEND)), None)
    )
    assert (word, holders, pullers, refused) == ("x", ["bert"], [], ["anna"])


@pytest.mark.parametrize(("strategy", "torn", "other"), [(RECEIVE, False, SEND), (POPULAR, True, POPULAR)])
def test_who_only_receives_never_wins_nor_serves(strategy, torn, other):
    shy = claim(7, "shy", strategy, torn=torn)
    assert outcome(elect(claims(shy, shy, claim(3, "x", other)), None)) == ("x", ["carl"], ["anna", "bert"], [])
    equal = claim(3, "x", strategy, torn=torn)
    elected = elect(claims(equal, claim(3, "x", other)), None)
    assert (elected.holders, elected.content, elected.pullers) == (("bert",), ("anna",), ())


@pytest.mark.parametrize("other", [RECEIVE, SEND])
def test_strategies_that_do_not_go_together_are_refused_with_both_sides(other):
    elected = elect(claims(claim(1, "x"), claim(2, "y", other), claim(1, "x")), None)
    assert outcome(elected) == (None, [], [], ["anna", "bert", "carl"])
    reason = elected.refused[0][1]
    assert "anna, carl called it with ENFORCE_POPULAR" in reason
    assert f"bert with {other.name}" in reason
    assert "all peers of the group" in reason


def test_nobody_sends():
    shy = claim(0, "x", RECEIVE)
    elected = elect(claims(shy, shy), None)
    assert outcome(elected) == (None, [], [], ["anna", "bert"])
    assert "no peer offers" in elected.refused[0][1]


def test_one_sender_beats_all_others():
    sender = claim(0, "sent", SEND)
    others = [claim(1, "x", RECEIVE)] * 3
    assert outcome(elect(claims(*others, sender), None)) == ("sent", ["dora"], ["anna", "bert", "carl"], [])


def test_senders_that_differ_are_told():
    elected = elect(claims(claim(1, "a", SEND), claim(1, "b", SEND), claim(0, "c", RECEIVE)), None)
    assert outcome(elected) == ("a", ["anna"], ["carl"], ["bert"])
    assert "anna" in elected.refused[0][1]


@pytest.mark.parametrize("agreed", [None, 0, 1])
def test_every_small_election(agreed):
    kinds = [
        claim(revision, word, strategy)
        for revision, word, strategy in product((0, 1, 2), "ab", (POPULAR, RECEIVE, SEND))
    ]
    for voters in product(kinds, repeat=3):
        given = claims(*voters)
        elected = elect(given, agreed)
        everybody = [*elected.holders, *elected.content, *elected.pullers, *(peer for peer, _ in elected.refused)]
        assert sorted(everybody) == sorted(given), "each voter has exactly one part"
        if elected.claim is None:
            kinds_here = {each.strategy for each in voters}
            assert kinds_here == {RECEIVE} or (POPULAR in kinds_here and len(kinds_here) > 1)
            continue
        assert len({each.strategy is POPULAR for each in voters}) == 1
        assert elected.holders
        assert all(given[peer].state == elected.claim.state for peer in (*elected.holders, *elected.content))
        assert all(given[peer].state != elected.claim.state for peer in elected.pullers)
        assert all(given[peer].strategy is not RECEIVE for peer in elected.holders)
        assert all(given[peer].strategy is SEND for peer, _ in elected.refused)


# ── peers without the right to bring a state ─────────────────────────────────────────────────────────────────────────

ANNA, BERT, CARL = map(PeerId, ("anna", "bert", "carl"))


def test_one_without_the_right_does_not_replace_what_the_others_hold():
    ours, evil = claim(4, "ours"), claim(5, "evil")
    for jump in (5, 6, 1000):
        evil = claim(jump, "evil")
        assert outcome(elect(claims(ours, evil, ours), 4, {BERT})) == ("ours", [ANNA, CARL], [BERT], [])
    assert outcome(elect(claims(ours, evil), 4, {BERT})) == ("ours", [ANNA], [BERT], [])


def test_nor_by_a_revision_that_all_others_have_left_behind():
    """The group has trained on since its last sync, as trainers do that sync only when somebody joins."""
    ours = claim(500, "ours")
    for old in (4, 5):
        evil = claim(old, "evil")
        assert outcome(elect(claims(ours, evil, ours), 4, {BERT})) == ("ours", [ANNA, CARL], [BERT], [])
        assert outcome(elect(claims(ours, evil), 4, {BERT})) == ("ours", [ANNA], [BERT], [])


def test_all_may_go_on_without_the_right():
    step = claim(5, "step")
    assert outcome(elect(claims(step, step, claim(0, "fresh")), 4, {ANNA, BERT, CARL})) == (
        "step",
        [ANNA, BERT],
        [CARL],
        [],
    )
    far = claim(90, "far")
    assert outcome(elect(claims(far, far, claim(0, "fresh")), 4, {ANNA, BERT, CARL})) == (
        "far",
        [ANNA, BERT],
        [CARL],
        [],
    )


def test_fresh_ones_do_not_outvote_the_run():
    fresh = claim(0, "fresh")
    assert outcome(elect(claims(claim(5, "step"), fresh, fresh), 4, {ANNA, BERT, CARL}))[0] == "step"


def test_with_the_right_all_is_as_before():
    ours, brought = claim(4, "ours"), claim(5, "brought")
    assert outcome(elect(claims(ours, brought, ours), 4, {ANNA, CARL}))[0] == "brought"
    assert outcome(elect(claims(ours, brought, ours), 4, ()))[0] == "brought"


def test_before_the_first_agreement_anybody_may_bring_its_checkpoint():
    fresh, saved = claim(0, "fresh"), claim(13, "saved", SEND)
    receives = claim(0, "fresh", RECEIVE)
    assert outcome(elect(claims(receives, saved), None, {ANNA, BERT}))[0] == "saved"
    assert outcome(elect(claims(fresh, claim(13, "saved")), None, {ANNA, BERT}))[0] == "saved"


def test_one_that_only_sends_is_refused_alone_and_reads_which_right_it_lacks():
    ours, evil = claim(4, "ours"), claim(4, "evil", SEND)
    elected = elect(claims(ours, evil, ours), 4, {BERT})
    assert outcome(elected) == ("ours", [ANNA, CARL], [], [BERT])
    assert "right to bring a state" in dict(elected.refused)[BERT]
    assert outcome(elect(claims(ours, evil), 4, {ANNA}))[0] is None, "a mixture, as before"


def test_a_tie_goes_to_who_has_the_right():
    evil, ours = claim(5, "evil"), claim(5, "ours")
    assert outcome(elect(claims(evil, ours), 4, {ANNA}))[0] == "ours"
    assert outcome(elect(claims(evil, ours), 4, ()))[0] == "evil"


def test_clones_of_one_token_outvote_no_holder_of_the_right():
    """Anna and bert have the right; the others joined with one token, as often as it took to be more."""
    guests = set(map(PeerId, ("carl", "dora", "emil")))
    ours, evil = claim(5, "ours"), claim(5, "evil")
    voters = claims(ours, ours, evil, evil, evil)
    assert outcome(elect(voters, 4, guests)) == ("ours", ["anna", "bert"], ["carl", "dora", "emil"], [])
    for theirs in (5, 6, 90):
        for held in (4, 5, 500):
            voters = claims(claim(held, "ours"), claim(0, "fresh"), *[claim(theirs, "evil")] * 3)
            assert outcome(elect(voters, 4, guests))[0] == "ours", (theirs, held)


def test_nor_do_they_choose_among_what_holders_of_the_right_hold():
    """By their number they would take the others back to what was agreed on long ago."""
    guests = set(map(PeerId, ("carl", "dora", "emil")))
    old, new = claim(4, "old"), claim(500, "new")
    assert outcome(elect(claims(new, claim(500, "odd"), *[claim(500, "odd")] * 3), 4, guests))[0] == "new"
    assert outcome(elect(claims(new, old, *[old] * 3), 4, guests))[0] == "new"


def test_guests_in_step_give_what_they_hold():
    step = claim(5, "step")
    elected = elect(claims(step, claim(0, "fresh"), step), 4, {BERT, CARL})
    assert outcome(elected) == ("step", [ANNA, CARL], [BERT], [])


def test_where_no_holder_of_the_right_is_in_step_guests_go_on():
    step = claim(5, "step")
    for behind in (claim(0, "fresh"), claim(3, "old"), claim(9, "torn", torn=True)):
        assert outcome(elect(claims(behind, step, step), 4, {BERT, CARL}))[0] == "step"
