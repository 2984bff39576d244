"""Many tensors, one transaction: all of them among the same peers, or none of them touched; with `retry`, with whoever
is left. Real processes, SIGKILL at some byte."""

import random

import pytest

from tests.e2e.harness import all_do, join

LENGTHS = [3_000_000, 100, 1, 900_000, 700_000]
MOVED = 4 * 4 * 3_700_001 // 3
"""Bytes of the larger part, about what each of three peers sends and receives of it."""


def order_all(peers, **arguments):
    for share, peer in enumerate(peers, start=1):
        peer.order("reduce_many", lengths=LENGTHS, share=share, **arguments)


def test_all_are_reduced_among_all(master, start_peers):
    peers = join([], start_peers(3, master.address, token=False))
    order_all(peers, retry=False)
    for answer in [peer.expect("reduce_many") for peer in peers]:
        assert (answer["values"], answer["attempts"], len(answer["peers"])) == ([6.0], 1, 3)


@pytest.mark.parametrize("seed", range(4))
def test_with_retry_the_survivors_go_on_by_themselves(master, start_peers, seed):
    peers = join([], start_peers(3, master.address, token=False))
    *stay, dies = peers
    order_all(stay, retry=True)
    dies.order("reduce_many", lengths=LENGTHS, share=100, retry=True, die_at=random.Random(seed).randrange(1, MOVED))
    answers = [peer.expect("reduce_many") for peer in stay]
    # Whoever died late may have been in time: then all three are in all tensors, and never in some.
    expected = ([3.0], 2) if len(answers[0]["peers"]) == 2 else ([103.0], 3)
    for answer in answers:
        assert (answer["values"], len(answer["peers"])) == expected
        assert answer["peers"] == answers[0]["peers"]


def test_without_retry_nothing_was_touched_and_the_same_call_works(master, start_peers):
    peers = join([], start_peers(3, master.address, token=False))
    *stay, dies = peers
    order_all(stay, retry=False)
    dies.order("reduce_many", lengths=LENGTHS, share=100, retry=False, die_at=MOVED // 4)
    ends = [peer.expect_any(("input", "reduce_many")) for peer in stay]
    assert ends[0]["event"] == ends[1]["event"]
    if ends[0]["event"] == "reduce_many":  # a busy machine has let it live for too long
        assert [end["values"] for end in ends] == [[103.0]] * 2
        dies.kill()
    else:
        assert [end["intact"] for end in ends] == [True, True]
        for peer in stay:
            failed = peer.expect("failed")
            assert failed["error"] == "CollectiveAborted"
            assert "tag 0" in failed["reason"]
    order_all(stay, retry=False)
    for peer in stay:
        assert peer.expect("reduce_many")["values"] == [3.0]


def test_the_last_survivor_is_told_and_keeps_its_tensors(master, start_peers):
    stays, dies = join([], start_peers(2, master.address, token=False))
    order_all([stays], retry=True)
    dies.kill()
    assert stays.expect("input")["intact"]
    assert stays.expect("failed")["error"] == "TooFewPeers"
    assert all_do([stays], "pending")[0]["pending"] is False
