"""Collectives that may take only so long to start: who did not call is named, and nothing is written afterwards."""

import re
import time

import numpy as np
import pytest

from pccl import UsageError
from pccl.api.work import limit_of
from pccl.types import short
from tests.e2e.harness import PATIENCE_S, all_do, join

COUNT = 5_000


def fails(peer, **arguments):
    """Let a peer reduce in vain; why, after its input was found intact."""
    peer.order("reduce", count=COUNT, **arguments)
    assert peer.expect("input")["intact"]
    return peer.expect("failed")


def test_who_did_not_call_is_named_with_the_tag_that_it_waits_in(master, start_peers):
    anna, bert, _ = peers = join([], start_peers(3, master.address, token=False))
    names = [short(facts["peer"]) for facts in all_do(peers, "facts")]
    bert.order("reduce", count=COUNT, share=2, tag=7, timeout=5.0)
    until = time.monotonic() + PATIENCE_S
    while True:
        failed = fails(anna, share=1, tag=3, timeout=0.1)
        assert failed["error"] == "CollectiveTimedOut"
        assert names[2] in failed["reason"]
        if f"({names[1]}) (it waits in tag 7)" in failed["reason"]:
            break
        assert time.monotonic() < until, failed["reason"]
    assert bert.expect("input")["intact"]
    failed = bert.expect("failed")
    assert failed["error"] == "CollectiveTimedOut"
    assert re.search(rf"not called by [^,]* \({names[0]}\)", failed["reason"])
    for share, peer in enumerate(peers, 1):
        peer.order("reduce", count=COUNT, share=share, tag=3, timeout=PATIENCE_S)
    said = [peer.expect("reduce") for peer in peers]
    assert {tuple(each["surplus"]) for each in said} == {(6.0, 6.0)}


@pytest.mark.parametrize("count", [100, 300_000], ids=["with the votes", "over the ring"])
def test_votes_that_come_and_go_spoil_nothing(master, start_peers, count):
    peers = join([], start_peers(3, master.address, token=False))
    for share, peer in enumerate(peers, 1):
        peer.order("hurry", rounds=40, count=count, share=share)
    said = [peer.expect("hurry") for peer in peers]
    assert [each["wrong"] for each in said] == [[], [], []]
    assert sum(each["late"] for each in said) > 20, "there was too much time"


def test_a_timeout_is_for_calls_that_wait():
    with pytest.raises(UsageError, match="pass it to the wait of the Work"):
        limit_of("all_reduce", 1.0, True)
    for wrong in (-1, "1", True, np.inf):
        with pytest.raises(UsageError, match="timeout must be seconds"):
            limit_of("all_reduce", wrong, False)
