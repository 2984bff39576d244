"""Calls that can never complete together are told from calls that are merely slow."""

from pccl.core.rules.contradictions import OpenCall, contradicting, describe
from pccl.types import PeerId

A, B, C = (PeerId(letter * 32) for letter in "abc")


def topology(voters: list[PeerId], missing: list[PeerId]) -> OpenCall:
    return OpenCall("update_topology", True, voters, missing)


def collective(tag: int, voters: list[PeerId], missing: list[PeerId]) -> OpenCall:
    return OpenCall(f"collective tag {tag}", False, voters, missing)


def test_one_updates_the_topology_while_the_other_waits_for_it_in_a_collective() -> None:
    calls = [topology([A], [B]), collective(3, [B], [A])]
    assert contradicting(calls) == calls
    text = describe(calls)
    assert "aaaaaaaa wait in update_topology" in text
    assert "bbbbbbbb wait in collective tag 3" in text


def test_another_groups_collective_only_delays_the_topology() -> None:
    """C's group waits for B, who is computing: nobody in update_topology is needed there."""
    assert contradicting([topology([A], [B, C]), collective(3, [C], [B])]) == []


def test_two_collectives_may_still_meet() -> None:
    assert contradicting([collective(1, [A], [B]), collective(2, [B], [A])]) == []


def test_the_pending_question_contradicts_a_topology_vote() -> None:
    question = OpenCall("are_peers_pending", False, [B], [A])
    assert len(contradicting([topology([A], [B]), question])) == 2


def test_the_pending_question_does_not_contradict_collectives() -> None:
    question = OpenCall("are_peers_pending", False, [B], [A])
    assert contradicting([question, collective(1, [A], [B])]) == []
