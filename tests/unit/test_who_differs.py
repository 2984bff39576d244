"""Peers that disagree read who is alone with what it wants: so the operator knows whom to look at."""

from pccl.core.fields import CollectiveSpec
from pccl.core.rules.agreement import disagreement
from pccl.core.rules.contradictions import OpenCall, describe
from pccl.types import DataType, PeerId, ReduceOp

PEERS = [PeerId(letter * 32) for letter in "abcde"]


def spec(count: int) -> CollectiveSpec:
    return CollectiveSpec(count, DataType.FLOAT, ReduceOp.SUM)


def test_the_minority_is_named() -> None:
    votes = {peer: spec(9 if peer == PEERS[1] else 8) for peer in PEERS}
    assert disagreement(votes).endswith("; different from the other 4: bbbbbbbb")
    votes[PEERS[4]] = spec(7)
    assert disagreement(votes).endswith("; different from the other 3: bbbbbbbb, eeeeeeee")


def test_without_a_majority_nobody_is() -> None:
    assert "different from" not in disagreement({PEERS[0]: spec(8), PEERS[1]: spec(9)})
    assert "different from" not in disagreement({peer: spec(place // 2) for place, peer in enumerate(PEERS[:4])})


def test_so_it_is_with_calls_that_contradict_each_other() -> None:
    calls = [OpenCall("update_topology", True, PEERS[:4], PEERS[4:]), OpenCall("tag 3", False, PEERS[4:], PEERS[:4])]
    assert "; different from the other 4: eeeeeeee." in describe(calls)
