"""Peers whose settings differ, or the number of their node's ranks: they alone are refused, with both values named, and
all others go on, whether they are in the run already or begin with them."""

import threading

import pytest
import torch

from pccl import PeerId, UsageError
from pccl.training import DiLoCo
from pccl.training.equals import of_equals, packed, unpacked
from pccl.training.rows import Row, Table
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_processes import UNTIL_STOPPED, master, processes
from tests.training.test_sharded import PLAIN, equal_rounds, killed_off, logged, nodes, stopped

__all__ = ["master", "nodes", "processes"]

FACTS = {"rounds": UNTIL_STOPPED, "whole": True, "step_s": 0.02, "lr": oracle.STEADY}


def refused(node):
    """Why each of its ranks was."""
    return [rank.expect("refused")["text"] for rank in node]


def test_nodes_of_other_sizes_that_begin_together(nodes):
    """One of them is refused, and the other one waits for a node like itself."""
    facts = {**FACTS, "options": PLAIN}
    two, one = nodes.start(**facts), nodes.start(ranks=1, **facts)
    (text,) = refused(one)
    assert "ranks of a node=1 here and ranks of a node=2 at" in text
    another = nodes.start(**facts)
    for rank in (*two, *another):
        rank.expect("round")
    assert logged(two[0], "is refused: it has ranks of a node=1, and here is ranks of a node=2")
    stopped(two)
    killed_off(another)
    equal_rounds(two, another)


@pytest.mark.parametrize(
    ("other", "value"),
    [({"ranks": 1}, "1"), ({"ranks": 3}, "3"), ({"ranks": 1, "alone": True}, "none")],
    ids=["fewer ranks", "more ranks", "no node"],
)
def test_one_of_another_size_that_comes_to_a_run(nodes, other, value):
    """It has not learned of the others' settings before it is let in."""
    facts = {**FACTS, "options": {**PLAIN, "min_peers": 1}}
    here = [nodes.start(**facts)]
    here[0][0].expect("round")
    here.append(nodes.start(**facts))
    while here[0][0].expect("round")["peers"] < 2:
        pass
    late = nodes.start(**facts, **other, fates={rank: {"unfetched": []} for rank in range(3)})
    for text in refused(late):
        assert f"ranks of a node={value} here and ranks of a node=2 at" in text
    for node in here:
        for rank in node:
            rank.skip()
            rank.expect("round")
            assert rank.expect("round")["peers"] == 2
    stopped(here[0])
    stopped(here[1])
    equal_rounds(*here)


def test_a_node_that_comes_to_a_run_of_plain_peers(nodes):
    facts = {**FACTS, "options": {**PLAIN, "min_peers": 1}}
    here = nodes.start(ranks=1, alone=True, **facts)
    here[0].expect("round")
    for text in refused(nodes.start(**facts, fates={rank: {"unfetched": []} for rank in range(2)})):
        assert "ranks of a node=2 here and ranks of a node=none at" in text
    here[0].skip()
    assert here[0].expect("round")["peers"] == 1


def test_plain_peers_that_begin_together_with_other_fragments(crew):
    """Three must be there; the fourth comes when one was refused, which may be the first of them."""
    gone = threading.Event()

    def act(number):
        model = oracle.make_model()
        optimizer = oracle.make_optimizer(model)
        run = DiLoCo(crew.address, model, optimizer, sync_every=2, min_peers=3, fragments=1 + (number == 2))
        if number == 2:
            with pytest.raises(UsageError, match="fragments=2 here and fragments=1 at"), run:
                pass
            gone.set()
            return None
        if number == 3:
            assert gone.wait(HANG_S)
        with run:
            for step in range(4):
                oracle.inner_step(model, optimizer, number, step)
        return run.outer_digest()

    assert len(set(crew.together(4, act))) == 2


def table(*told):
    """Rows of peers with these settings; those in step are told apart by a star."""
    rows = tuple(Row(synced=int(each.endswith("*"))) for each in told)
    extras = tuple(packed({"clip": each.strip("*")}) for each in told)
    return Table(tuple(PeerId(str(number)) for number in range(len(told))), rows, extras)


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (["1.0"], ["0"]),
        (["1.0", "1.0", "2.0"], ["0", "1"]),
        (["2.0", "1.0", "1.0"], ["1", "2"]),
        (["1.0", "1.0", "2.0*"], ["2"]),
        (["1.0", "2.0*", "2.0*", "1.0"], ["1", "2"]),
        (["1.0", "2.0"], ["1"]),
    ],
    ids=str,
)
def test_those_of_the_run_stay_and_else_those_of_most(told, left):
    for number, own in enumerate(told):
        me = PeerId(str(number))
        if str(number) in left:
            assert list(of_equals(table(*told), me, 1, str).peers) == left
        else:
            here, there = f"clip={own.strip('*')} here", f"clip={told[int(left[0])].strip('*')} at {left[0]};"
            with pytest.raises(UsageError, match=f"got {here} and {there}"):
                of_equals(table(*told), me, 1, str)


def test_before_a_run_begins_each_kind_waits_for_more_of_it():
    """The first one may be the odd one, and would refuse all others one by one."""
    told = table("2.0", "1.0", "2.0")
    kinds = [of_equals(told, me, 4, str).peers for me in told.peers]
    assert kinds == [("0", "2"), ("1",), ("0", "2")]


def test_settings_travel_as_bits_and_must_fit():
    settings = {"clip": "None", "quantize": "int8"}
    assert unpacked(packed(settings)) == settings
    assert unpacked(torch.zeros(3, dtype=torch.float64)) == {}
    with pytest.raises(UsageError, match="4096 bytes"):
        packed({"clip": "1" * 5000})
