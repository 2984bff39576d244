"""Joining, leaving and dying, with real processes and real signals."""

import json
import os
import signal

from tests.e2e.harness import all_do, join
from tests.patience import allow


def assert_one_ring(facts):
    """The same epoch and ring everywhere, each member once, each at its own rank."""
    assert len({(each["epoch"], tuple(each["ring"])) for each in facts}) == 1
    ring = facts[0]["ring"]
    assert sorted(ring) == sorted(each["peer"] for each in facts)
    assert all(ring[each["rank"]] == each["peer"] for each in facts)


def test_the_first_peer_is_accepted_at_once(master, start_peers):
    (peer,) = start_peers(1, master.address)
    facts = peer.do("connect")
    assert (facts["size"], facts["group_size"], facts["groups"], facts["largest_group"]) == (1, 1, 1, 1)
    assert facts["seconds"] < 1.0
    assert peer.do("pending")["pending"] is False
    assert peer.do("update")["epoch"] == facts["epoch"]


def test_the_second_waits_until_the_first_updates(master, start_peers):
    first, second = start_peers(2, master.address)
    first.do("connect")
    second.order("connect")
    first.do("await_pending")
    assert second.says_nothing()
    assert first.do("update")["size"] == 2
    assert second.expect("connect")["size"] == 2


def test_eight_peers_join_one_after_another(master, start_peers):
    peers = join([], start_peers(8, master.address))
    assert_one_ring(all_do(peers, "await_size", size=8))


def test_eight_peers_join_together(master, start_peers):
    peers = start_peers(8, master.address)
    for peer in peers:
        peer.order("connect")
    for peer in peers:
        peer.order("train")
    for peer in peers:
        peer.expect("connect")
    assert_one_ring([peer.expect("epoch", size=8) for peer in peers])


def test_groups_reduce_among_themselves(master, start_peers):
    red, blue = start_peers(2, master.address, peer_group=1), start_peers(3, master.address, peer_group=2)
    peers = join([], [*red, *blue])
    facts = all_do(peers, "await_size", size=5)
    assert [each["group_size"] for each in facts] == [2, 2, 3, 3, 3]
    assert {(each["groups"], each["largest_group"]) for each in facts} == {(2, 3)}
    assert len({tuple(each["ring"]) for each in facts}) == 2
    # One group's collective waits for nobody in the other.
    assert len({each["attempt"] for each in all_do(red, "collective")}) == 1


def test_the_death_of_an_idle_peer_is_pushed_to_the_others(master, start_peers):
    peers = join([], start_peers(4, master.address))
    victim = peers.pop(1)
    for peer in peers:
        peer.order("await_size", size=3)
    victim.kill()
    facts = [peer.expect("await_size", timeout_s=allow(5.0)) for peer in peers]
    assert_one_ring(facts)
    assert victim.peer not in facts[0]["ring"]
    master.expect_said(victim.peer[:8], "is gone")


def test_a_goodbye_is_told_as_one(master, start_peers):
    stays, goes = join([], start_peers(2, master.address))
    goes.do("close")
    goes.do("close")
    stays.do("await_size", size=1)
    master.expect_said(goes.peer[:8], "goodbye")


def test_death_inside_a_vote_on_the_topology(master, start_peers):
    peers = join([], start_peers(3, master.address))
    victim = peers.pop()
    for peer in peers:
        peer.order("update")
    # It is asked for its vote and dies instead.
    victim.kill()
    facts = [peer.expect("update", timeout_s=allow(5.0)) for peer in peers]
    assert {each["size"] for each in facts} == {2}


def test_death_after_a_vote_on_the_topology(master, start_peers):
    peers = join([], start_peers(3, master.address))
    voter, late = peers[0], peers[1:]
    voter.order("update")
    master.expect_said("update_topology", late[0].peer[:8])
    voter.kill()
    assert {each["size"] for each in all_do(late, "update")} == {2}


def test_death_of_a_candidate(master, start_peers):
    peers = join([], start_peers(2, master.address))
    (candidate,) = start_peers(1, master.address)
    candidate.order("connect")
    all_do(peers, "await_pending")
    candidate.kill()
    facts = all_do(peers, "update")
    assert {each["size"] for each in facts} == {2}
    (next_candidate,) = start_peers(1, master.address)
    join(peers, [next_candidate])


def test_candidates_form_the_roster_when_the_last_accepted_peer_dies(master, start_peers):
    first, *candidates = start_peers(3, master.address)
    first.do("connect")
    for candidate in candidates:
        candidate.order("connect")
    master.expect_said("wait for", "update_topology")
    first.kill()
    for candidate in candidates:
        candidate.expect("connect")
    for candidate in candidates:
        candidate.order("train")
    for candidate in candidates:
        candidate.expect("epoch", size=2)


def test_a_stopped_peer_is_kicked_and_told_so(start_master, start_peers):
    master = start_master(silence_s=1.0, candidate_silence_s=1.0)
    peers = join([], start_peers(3, master.address))
    stopped = peers.pop(1)
    stopped.stop()
    facts = all_do(peers, "update")
    assert {each["size"] for each in facts} == {2}
    assert all(0.5 < each["seconds"] < 5.0 for each in facts)
    stopped.signal(signal.SIGCONT)
    stopped.order("update")
    failed = stopped.expect("failed")
    assert failed["error"] == "Kicked"
    assert "nothing for 1 s" in failed["reason"]
    all_do(peers, "collective")


def test_a_busy_peer_is_not_kicked(start_master, start_peers):
    master = start_master(silence_s=1.0)
    busy, waiting = join([], start_peers(2, master.address))
    waiting.order("update")
    # Its control thread answers for it, however long it does not call.
    master.expect_said("update_topology", busy.peer[:8])
    assert busy.do("await_size", size=2)["size"] == 2
    busy.do("update")
    waiting.expect("update")


FREEZE_S = 2.5
"""Well above the limits that these tests set, so that whoever is frozen would have reason to give up on everybody."""


def test_a_master_that_stood_still_kicks_nobody(start_master, start_peers):
    master = start_master(silence_s=1.0, candidate_silence_s=1.0)
    waiting, busy, calling, stopped = join([], start_peers(4, master.address))
    waiting.order("update")
    master.expect_said("update_topology", busy.peer[:8])
    stopped.stop()
    master.stop()
    # A message that waits for the master is handled before its late timer.
    calling.order("update")
    master.resume_after(FREEZE_S)
    # Once it has judged the one who is silent, it has judged all by the same measure.
    master.expect_said(stopped.peer[:8], "nothing for 1 s")
    assert busy.do("update")["size"] == 3
    assert {peer.expect("update")["size"] for peer in (waiting, calling)} == {3}


def test_a_peer_that_stood_still_gives_nobody_up(master, start_peers):
    frozen, other = join([], start_peers(2, master.address, master_silence_s=1.0))
    frozen.order("update")
    master.expect_said("update_topology", other.peer[:8])
    frozen.stop()
    frozen.resume_after(FREEZE_S)
    assert other.do("update")["size"] == 2
    assert frozen.expect("update")["size"] == 2


def test_peers_learn_that_the_master_died(master, start_peers):
    calling, idle = join([], start_peers(2, master.address, master_timeout_s=1.0))
    calling.order("update")
    master.expect_said("update_topology")
    master.kill()
    assert calling.expect("failed", timeout_s=allow(5.0))["error"] == "MasterLost"
    idle.order("pending")
    assert idle.expect("failed", timeout_s=allow(5.0))["error"] == "MasterLost"
    # Loops that look at the number of peers end, and closing does not wait for anybody.
    assert idle.do("await_size", size=1)["size"] == 1
    assert all(each["seconds"] < 2.0 for each in all_do([calling, idle], "close"))


def test_a_forked_child_does_not_keep_its_parent_alive(master, start_peers):
    parent, other = join([], start_peers(2, master.address))
    parent.order("fork")
    said = _both(parent)
    assert said["child"]["error"] == "UsageError"
    assert "forked" in said["child"]["reason"]
    # The fork has harmed nobody: the parent still votes.
    all_do([parent, other], "update")
    other.order("await_size", size=1)
    parent.signal(signal.SIGKILL)
    try:
        assert other.expect("await_size", timeout_s=allow(5.0))["size"] == 1
    finally:
        _kill(said["fork"]["child"])


def _both(parent):
    """Parent and child print in any order."""

    said = {}
    while len(said) < 2:
        line = json.loads(parent.line())
        said[line["event"]] = line
    return said


def _kill(process):

    os.kill(process, signal.SIGKILL)
