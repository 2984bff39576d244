"""The stress tool itself: what it checks has teeth, and what it draws follows from the seed."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.patience import HANG_S
from tests.stress.child import Child
from tests.stress.command import add_arguments, replay, seconds_range
from tests.stress.faults import CUTS, KILLS, MASTERS, STOPS, Faults
from tests.stress.fleet import Fleet
from tests.stress.options import Options
from tests.stress.parity import Parity
from tests.stress.referee import Referee
from tests.stress.secrecy import Secrecy
from tests.stress.show import Lines, PlainTable, RichTable, choose_painter
from tests.stress.values import Tensor, Wrong

LOG = Path("peer.log")
PEERS = ["a" * 32, "b" * 32, "c" * 32]


def tensor(count=3000, dtype="float32"):
    return Tensor(step=5, tag=2, part=0, count=count, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
def test_a_sum_is_that_of_the_contributions(dtype):
    it = tensor(dtype=dtype)
    it.check_sum(sum(it.of(peer) for peer in PEERS), PEERS)


@pytest.mark.parametrize("damage", [0, 1, 2999])
def test_one_wrong_element_is_found(damage):
    it = tensor()
    found = it.sum_of(PEERS)
    found[damage] += 1
    with pytest.raises(Wrong, match=f"wrong in 1 of 3000 elements from {damage}"):
        it.check_sum(found, PEERS)


def test_a_share_too_few_too_many_or_of_another_step_is_found():
    it = tensor()
    for found in (it.sum_of(PEERS[:2]), it.sum_of([*PEERS, PEERS[0]]), Tensor(4, 2, 0, 3000, "float32").sum_of(PEERS)):
        with pytest.raises(Wrong):
            it.check_sum(found, PEERS)


def test_moved_segments_are_found():
    it = tensor(count=300_000)
    with pytest.raises(Wrong):
        it.check_sum(np.roll(it.sum_of(PEERS), 65536), PEERS)


def test_an_input_that_is_not_put_back_is_found():
    it = tensor()
    it.check_intact(it.of(PEERS[0]), PEERS[0])
    with pytest.raises(Wrong, match="the input after a failure"):
        it.check_intact(it.sum_of(PEERS[:2]), PEERS[0])


def committed(digest="d", peers=("a", "b"), attempts=1, seconds=0.1):
    return {
        "kind": "small",
        "step": 1,
        "tag": 1,
        "digest": digest,
        "peers": list(peers),
        "attempts": attempts,
        "seconds": seconds,
    }


@pytest.mark.parametrize("other", [{"digest": "e"}, {"peers": ("a",)}, {"attempts": 2}])
def test_results_that_differ_between_peers_are_found(other):
    referee = Referee(bound_s=1.0)
    referee.committed("peer 1", committed(), LOG, 0.0)
    referee.committed("peer 2", committed(), LOG, 0.0)
    assert (referee.broken, referee.score.compared) == ([], 1)
    referee.committed("peer 3", committed(**other), LOG, 0.0)
    assert "step 1 tag 1 (small) differs" in referee.broken[0]
    assert str(LOG) in referee.broken[0]


def test_a_wait_beyond_its_bound_is_found_unless_the_peer_was_stopped():
    referee = Referee(bound_s=1.0)
    referee.committed("peer 1", committed(seconds=2.5), LOG, late_s=2.0)
    assert referee.broken == []
    referee.committed("peer 2", committed(seconds=2.5), LOG, late_s=0.0)
    assert "peer 2 waited 2.5 s in small" in referee.broken[0]


def test_pauses_are_between_the_first_ends_of_steps():
    referee = Referee(bound_s=4.0)
    for step, now in [(1, 0.0), (1, 5.0), (2, 6.0), (3, 6.5)]:
        referee.step_ended(step, now, LOG)
    assert (referee.score.steps, referee.score.longest_pause_s, referee.broken) == (3, 6.0, [])


def test_a_pause_beyond_its_bound_is_found():
    referee = Referee(bound_s=4.0)
    referee.step_ended(1, 0.0, LOG)
    referee.step_ended(2, 8.5, LOG)
    assert "step 2 ended 8.5 s after" in referee.broken[0]


@pytest.mark.parametrize(
    "line", ["Traceback (most recent call last):", "CRITICAL internal error, please report it", "well", ""]
)
def test_errors_that_nobody_was_told_of_are_found_in_the_logs(tmp_path, line):
    (tmp_path / "peer-1.log").write_text("all is well\n")
    (tmp_path / "peer-2.log").write_text(f"all is well\n{line}\n")
    referee = Referee(bound_s=1.0)
    referee.read_logs(tmp_path)
    assert bool(referee.broken) == (line not in ("well", ""))
    if referee.broken:
        assert "peer-2 logged an error in line 2" in referee.broken[0]


def test_a_master_ends_with_its_parent():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.stress.master", "--listen", "127.0.0.1:0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as master:
        assert "listens on 127.0.0.1" in master.stdout.readline()
        master.stdin.close()
        assert master.wait(HANG_S) == 1


def test_a_drill_may_end_while_no_master_is_there(tmp_path):
    with Fleet(tmp_path, options()) as fleet:
        fleet.kill_master()


def test_the_stacks_of_a_peer_are_in_its_log_when_they_have_been_asked_for(tmp_path):
    with Fleet(tmp_path, options()) as fleet:
        peer = fleet.start_peer()
        while not any(said and said["event"] == "ready" for _, said in fleet.hear(20.0)):
            assert peer.child.process.poll() is None
        peer.stage = "spare"
        fleet.write_stacks()
        assert "most recent call first" in peer.child.log.read_text()


def test_what_master_and_parent_write_into_a_log_stays(tmp_path):
    words = "import sys, time; print('one', file=sys.stderr); input(); print('three', file=sys.stderr)"
    (tmp_path / "script.py").write_text(words)
    child = Child("a child", tmp_path, ["script"], {"PYTHONPATH": str(tmp_path)})
    while "one" not in child.log.read_text():
        pass
    with child.log.open("a") as log:
        log.write("two\n")
    child.order("go on")
    child.process.wait(HANG_S)
    child.end()
    assert child.log.read_text().split() == ["one", "two", "three"]


class State:
    """A shared state that others have decided upon."""

    torn = False
    revision = 0

    def push_revision(self):
        self.revision += 1


class Sole:
    """A caller whose syncs bring the revision that was chosen."""

    step = 1

    def __init__(self, parity, me="a"):
        self.me, self.communicator, self._parity = me, self, parity

    def sync_shared_state(self, state):
        self._parity._content += self._parity._step * (self.chosen - state.revision)
        state.revision = self.chosen

    def report(self, *what, **facts):
        pass

    def sync(self, revision):
        self.chosen = revision
        self._parity.sync(self)


def test_a_state_that_goes_back_is_found_but_not_after_a_new_beginning():
    parity = Parity()
    parity._state = State()
    first = Sole(parity, "a")
    first.sync(4)
    parity.learn()
    first.sync(5)
    parity.learn()
    Sole(parity, "b").sync(3)
    parity.learn()
    with pytest.raises(Wrong, match="went back from 4 to 2"):
        Sole(parity, "b").sync(2)


def test_masters_that_are_killed_one_after_the_other_prolong_a_wait():
    referee = Referee(bound_s=4.0, grace_s=lambda seconds: 10.0 if seconds > 3.0 else 0.0)
    referee.waited("peer 1", {"kind": "small", "seconds": 13.0}, LOG, 0.0)
    referee.step_ended(1, 0.0, LOG)
    referee.step_ended(2, 17.0, LOG)
    assert (referee.broken, referee.score.longest_call_s, referee.score.longest_pause_s) == ([], 13.0, 17.0)
    referee.waited("peer 1", {"kind": "small", "seconds": 14.5}, LOG, 0.0)
    referee.step_ended(3, 36.0, LOG)
    assert len(referee.broken) == 2


def test_a_log_with_a_token_in_it_breaks_the_drill(tmp_path):
    secrecy = Secrecy.make(tmp_path)
    assert Secrecy.make(tmp_path) == secrecy, "a master that is started again has the same"
    (tmp_path / "peer-1.log").write_text("a line\nall is well\n")
    referee = Referee(bound_s=4.0)
    referee.read_logs(tmp_path, secrecy.hidden)
    assert referee.broken == []
    for hidden in secrecy.hidden:
        (tmp_path / "peer-1.log").write_text(f"it dials pccl://127.0.0.1:1#{hidden} again\n")
        referee = Referee(bound_s=4.0)
        referee.read_logs(tmp_path, secrecy.hidden)
        assert "has logged a token or a secret" in referee.broken[0]


def options(**wishes):
    usual = {"peers": 4, "seconds": 1.0, "kills": None, "kill_every": (0.2, 1.0), "silence_s": 4.0, "bound_s": 15.0}
    return Options(**{**usual, "seed": 1, **wishes})


def test_faults_follow_from_the_seed():
    def drawn(seed):
        cuts = []
        faults = Faults(options(seed=seed, cut=True), lambda seconds, do: None, lambda **how: cuts.append(how))
        kinds = [faults.strike([]) for _ in range(50)]
        return kinds, cuts, [faults.pause(0.2, 1.0) for _ in range(5)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert {how["kind"] for how in drawn(1)[1]} == {*CUTS}


@pytest.mark.parametrize(
    ("wishes", "kinds"),
    [
        ({}, {}),
        ({"stop": True}, STOPS),
        ({"cut": True}, CUTS),
        ({"master": True}, MASTERS),
        ({"stop": True, "cut": True, "master": True}, {**STOPS, **CUTS, **MASTERS}),
    ],
)
def test_only_faults_that_were_asked_for_come(wishes, kinds):
    assert Faults(options(**wishes), None, None).weights == {**KILLS, **kinds}


def test_a_broken_drill_names_the_command_that_replays_it():
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    chosen = parser.parse_args(["--peers", "5", "--kills", "9", "--kill-every", "0.1-2", "--stop", "--cut", "--master"])
    chosen.secret = True
    assert replay(chosen, 77) == (
        "python -m tests.stress --peers 5 --seed 77 --kills 9 --kill-every 0.1-2 --silence 4 --bound 15 "
        "--stop --cut --master --secret"
    )
    assert vars(parser.parse_args(replay(chosen, 77).split()[3:])) == {**vars(chosen), "seed": 77}


@pytest.mark.parametrize("text", ["x", "2-1", "-1", "1-x"])
def test_nonsense_for_kill_every_is_refused(text):
    import argparse

    with pytest.raises(argparse.ArgumentTypeError):
        seconds_range(text)


class Terminal(io.StringIO):
    def isatty(self):
        return True


ROWS = [("peer 1 (abcdef01)", "in", "large", "7", "0.0s", "stopped")]


@pytest.mark.parametrize("painter", [RichTable, PlainTable])
def test_a_terminal_shows_a_table_and_clears_it(painter):
    out = Terminal()
    drawing = painter(out)
    drawing.draw("the headline", ROWS)
    drawn = out.getvalue()
    drawing.draw("the next headline", ROWS)
    drawing.clear()
    assert "the headline" in drawn
    assert "peer 1 (abcdef01)" in drawn
    assert out.getvalue().endswith(("\x1b[J", "\x1b[2K", "\x1b[?25h")), repr(out.getvalue()[-40:])


def test_what_is_no_terminal_gets_lines(monkeypatch):
    assert isinstance(choose_painter(io.StringIO()), Lines)
    assert isinstance(choose_painter(Terminal()), RichTable)
    monkeypatch.setitem(sys.modules, "rich.live", None)
    assert isinstance(choose_painter(Terminal()), PlainTable)
