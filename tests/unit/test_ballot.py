"""A ballot counts, forgets the dead and says whom it waits for."""

from pccl.core.rules.ballot import Ballot
from pccl.core.text import NAMES_MAX, names
from pccl.types import PeerId

A, B, C = (PeerId(letter * 32) for letter in "abc")


def ballot_of(*electorate: PeerId) -> tuple[Ballot[None], list[PeerId]]:
    living = list(electorate)
    return Ballot[None]("update_topology", lambda: living), living


def test_nobody_asked_so_nothing_is_complete_and_nobody_is_missing() -> None:
    ballot, _ = ballot_of(A, B)
    assert not ballot.complete
    assert ballot.missing() == []


def test_complete_only_when_every_living_voter_has_voted() -> None:
    ballot, _ = ballot_of(A, B)
    ballot.cast(A, None, 1.0)
    assert not ballot.complete
    ballot.cast(B, None, 2.0)
    assert ballot.complete
    assert ballot.since == 1.0


def test_a_death_completes_the_ballot_that_waited_for_the_dead() -> None:
    ballot, living = ballot_of(A, B)
    ballot.cast(A, None, 0.0)
    living.remove(B)
    ballot.forget(B)
    assert ballot.complete


def test_the_vote_of_the_dead_does_not_stand_in_for_the_living() -> None:
    ballot, living = ballot_of(A, B, C)
    ballot.cast(A, None, 0.0)
    ballot.cast(B, None, 0.0)
    living.remove(B)
    ballot.forget(B)
    assert not ballot.complete
    assert ballot.missing() == [C]


def test_a_ballot_of_the_dead_is_not_complete() -> None:
    ballot, living = ballot_of(A)
    ballot.cast(A, None, 0.0)
    living.clear()
    ballot.forget(A)
    assert not ballot.complete


def test_the_explanation_names_who_is_missing_and_counts_the_rest() -> None:
    ballot, _ = ballot_of(A, B, C)
    ballot.cast(A, None, 0.0)
    assert ballot.explain() == "update_topology waits for bbbbbbbb, cccccccc (1 of 3 peers have called it)"


def test_a_thousand_names_are_counted_rather_than_listed() -> None:
    peers = [PeerId(f"{number:08x}") for number in range(1000)]
    assert names(peers).endswith(f"and {1000 - NAMES_MAX} more")


def test_while_several_are_forgotten_one_by_one_as_many_votes_as_voters_are_not_enough() -> None:
    ballot, living = ballot_of(A, B, C)
    for voter in (B, C):
        ballot.cast(voter, None, 0.0)
    living.remove(C)
    assert not ballot.complete
    ballot.forget(C)
    assert not ballot.complete
    assert ballot.missing() == [A]
