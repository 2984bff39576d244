"""Lightning's Trainer, two of them and more: a kill, a join, a resume, a notice."""

import signal

from tests.frameworks import fleet

fleet.needs("lightning")

PEER = "tests.frameworks.lightning_peer"


def test_one_is_killed_and_one_joins(master, processes, tmp_path):
    fleet.one_is_killed_and_one_joins(processes, PEER, master.address, tmp_path)


def test_all_are_killed_and_go_on(master, processes, tmp_path):
    fleet.all_are_killed_and_go_on(processes, PEER, master.address, tmp_path, lambda folder: str(folder / "last.ckpt"))


def test_a_notice_ends_the_training_and_the_peer_says_goodbye(master, processes, tmp_path):
    told = {"options": {"sync_every": fleet.EVERY}, "step_s": 0.02}
    (peer,) = fleet.start(processes, PEER, master.address, tmp_path, 1, **told)
    peer.go()
    peer.expect("round")
    peer.signal(signal.SIGTERM)
    master.expect_said("is gone", "said goodbye")
