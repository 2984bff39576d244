"""Every function of the C API, with C beside Python in one ring, and deaths."""

import signal
import socket
import subprocess

import numpy as np
import pytest

from pccl.types import Attribute, Result
from tests.c_api.building import COMPILERS, HERE, CProcess, compile_program, environment
from tests.e2e.harness import PATIENCE_S
from tests.e2e.state_actor import random_array
from tests.patience import allow

SECOND_S = 1.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def admitted(peer, others):
    """Let this one in, by those who are."""
    peer.order("connect")
    for each in others:
        each.order("await_pending")
    for each in others:
        _done(each, "await_pending")
    for each in others:
        each.order("update")
    for each in others:
        _done(each, "update")
    assert peer.answer("connect").result == 0


def _done(peer, order):
    if isinstance(peer, CProcess):
        assert peer.answer(order).result == 0
    else:
        peer.expect(order)


@pytest.fixture
def ring(master, start, start_peers, actor, another_actor):
    """Two peers in C, of two compilers, and one in Python, in one ring."""
    first, second = (start(program).become_peer(master.port) for program in (actor, another_actor))
    assert first.do("connect").result == 0
    admitted(second, [first])
    (python,) = start_peers(1, master.address, token=False)
    python.order("connect")
    for each in (first, second):
        each.order("await_pending")
    for each in (first, second):
        assert each.answer("await_pending").facts["pending"] == "1"
    for each in (first, second):
        each.order("update")
    for each in (first, second):
        assert each.answer("update").result == 0
    python.expect("connect")
    return first, second, python


def all_reduce(first, second, python, count, *, apart=0, quantised=0):
    """Shares 1, 2 and 3; the answers of those in C, and of the one in Python."""
    first.order("reduce", count, 1, 0, 0, apart, quantised)
    second.order("reduce", count, 2, 0, 0, apart, quantised)
    python.order("reduce", count=count, share=3)
    return first.answer("reduce"), second.answer("reduce"), python.expect("reduce")


def test_c_and_python_reduce_together(ring):
    for count in (1, 1_000, 1_000_000):
        one, other, python = all_reduce(*ring, count, apart=1)
        assert python["surplus"] == [6.0, 6.0]
        for answer in (one, other):
            assert answer.result == 0, answer
            assert (answer.facts["peers"], answer.facts["least"], answer.facts["most"]) == ("3", "6", "6")
            assert int(answer.facts["tx"]) > 0
    for each in ring[:2]:
        sizes = [each.succeed("size", int(attribute))["size"] for attribute in Attribute]
        assert sizes == ["3", "3", "1", "3"]
        each.succeed("optimise")


def test_a_peer_in_c_that_is_killed_is_missed_by_neither_language(ring):
    first, second, python = ring
    first.order("reduce", 1_000, 1, 0, 0, 0, 0)
    python.order("reduce", count=1_000, share=3)
    second.kill()
    assert first.answer("reduce").facts["least"] == "4", "it had not voted, so that the rest begin without it"
    assert python.expect("reduce")["surplus"] == [4.0, 4.0]


def test_a_death_in_the_middle_aborts_and_the_same_call_can_be_made_again(ring):
    first, second, python = ring
    count = 4_000_000
    python.order("reduce", count=count, share=3, die_at=count)
    for each, share in ((first, 1), (second, 2)):
        each.order("reduce", count, share, 0, 0, 0, 0)
    for each, share in ((first, "1"), (second, "2")):
        aborted = each.answer("reduce")
        assert aborted.result == Result.RANK_CONNECTION_LOST, aborted
        assert "was aborted" in aborted.text
        assert (aborted.facts["least"], aborted.facts["most"]) == (share, share), "the input is as it was"
    for each, share in ((first, 1), (second, 2)):
        each.order("reduce", count, share, 0, 0, 0, 0)
    for each in (first, second):
        assert each.answer("reduce").facts["least"] == "3"


def test_the_death_of_a_peer_in_python_is_survived_by_many_with_retry(ring):
    first, second, python = ring
    for each, share in ((first, 1), (second, 2)):
        each.order("many", 12, 5_000, share, 4)
    python.kill()
    for each in (first, second):
        answer = each.answer("many")
        assert answer.result == 0, answer
        assert answer.facts["peers"] == "2"
        assert (answer.facts["least"], answer.facts["most"]) == ("3", "3")


def test_many_in_flight_are_awaited_in_any_order(ring):
    first, second, python = ring
    for tag in range(4):
        first.succeed("launch", tag, 100 + tag, 1)
        second.succeed("launch", tag, 100 + tag, 2)
    again = first.do("launch", 0, 100, 1)
    assert again.result == Result.INVALID_ARGUMENT
    assert "pcclAwaitAsyncReduce first" in again.text
    assert first.do("update").result == Result.PENDING_ASYNC_OPS
    for tag in range(4):
        python.order("reduce", count=100 + tag, share=3, tag=tag)
        python.expect("reduce")
    for tag in (3, 0, 2, 1):
        for each in (first, second):
            answer = each.do("await", tag)
            assert (answer.result, answer.facts["peers"], answer.facts["least"]) == (0, "3", "6"), answer
    twice = first.do("await", 0)
    assert twice.result == Result.INVALID_ARGUMENT
    assert "awaited before" in twice.text


def test_what_is_in_flight_when_a_peer_is_destroyed_ends(ring):
    first, second, _ = ring
    first.succeed("launch", 5, 1_000_000, 1)
    second.succeed("launch", 5, 1_000_000, 2)
    for each in (first, second):
        each.succeed("destroy")
        gone = each.do("await", 5)
        assert gone.result == Result.INVALID_ARGUMENT
        assert "not be destroyed" in gone.text


def test_floats_travel_as_codes(ring):
    first, second, _ = ring
    ring[2].kill()
    for each, share in ((first, 1), (second, 2)):
        each.order("reduce", 100_000, share, 0, 0, 0, 1)
    answers = [each.answer("reduce") for each in (first, second)]
    if answers[0].result == Result.RANK_CONNECTION_LOST:  # it began before the death was known
        for each, share in ((first, 1), (second, 2)):
            each.order("reduce", 100_000, share, 0, 0, 0, 1)
        answers = [each.answer("reduce") for each in (first, second)]
    for answer in answers:
        assert answer.result == 0, answer
        assert 0.0 < float(answer.facts["least"]) < 3.0 < float(answer.facts["most"]) < 6.0, "as good as codes are"
        assert int(answer.facts["tx"]) < 100_000 * 2, "and shorter than floats"


def test_a_newcomer_in_c_gets_the_state_of_peers_in_python(master, start, start_peers):
    count, entries = 50_000, [["weights", 50_000, "float32"]]
    (python,) = start_peers(1, master.address, token=False)
    python.do("connect")
    python.do("hold", entries=entries, seed=7, revision=41)
    peer = start().become_peer(master.port)
    admitted(peer, [python])
    python.order("sync")
    answer = peer.do("sync", 0, 9, count, 0, "weights")
    assert python.expect("sync")["tx"] == count * 4
    expected = random_array(np.random.default_rng(7), count, np.dtype("float32"))
    digest = 14695981039346656037
    for byte in expected.tobytes():
        digest = (digest ^ byte) * 1099511628211 % 2**64
    assert answer.result == 0, answer
    assert answer.facts == {"revision": "41", "tx": "0", "rx": str(count * 4), "digest": str(digest)}
    python.order("sync")
    wrong = peer.do("sync", 40, 9, count, 0, "biases")
    assert wrong.result == Result.INVALID_USAGE
    assert "'weights' of the elected state is missing here" in wrong.text


def test_wrong_arguments_are_refused_one_by_one(master, start, another_actor):
    peer = start(another_actor).become_peer(master.port)
    early = peer.do("reduce", 1, 1, 0, 0, 0, 0)
    assert (early.result, early.text) == (Result.INVALID_USAGE, "all_reduce: call connect first")
    assert peer.do("connect").result == 0
    assert set(peer.do("nulls").words) == {"3"}
    assert peer.do("sync", 2**63, 0, 1, 0, "x").result == Result.INVALID_ARGUMENT
    assert peer.do("reduce", 1, 1, 2**63, 0, 0, 0).result == Result.INVALID_ARGUMENT
    alone = peer.do("reduce", 1, 1, 0, 0, 0, 0)
    assert alone.result == Result.TOO_FEW_PEERS
    assert peer.do("optimise").result == Result.INVALID_USAGE
    assert peer.do("connect").result == Result.INVALID_USAGE
    peer.succeed("destroy")
    gone = peer.do("update")
    assert (gone.result, "not be destroyed" in gone.text) == (Result.INVALID_ARGUMENT, True)


def test_init_comes_first_and_a_missing_master_is_named(start):
    peer = start()
    assert peer.do("create", 1, 0, 0).result == Result.NOT_INITIALIZED
    assert peer.succeed("build")["cuda"] == "0"
    peer.become_peer(free_port())
    lost = peer.do("connect")
    assert lost.result == Result.MASTER_CONNECTION_FAILED
    assert "no master at 127.0.0.1:" in lost.text
    assert "after 1 attempt" in lost.text
    assert peer.do("connect").result == Result.MASTER_CONNECTION_FAILED, "it may be tried again"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_master_in_c_serves_until_a_signal_handler_interrupts_it(compiler, tmp_path, processes):
    program = compile_program(compiler, HERE / "actor.c", tmp_path / "actor")
    master, peer = (CProcess(program) for _ in range(2))
    processes.extend((master, peer))
    port = free_port()
    master.succeed("create_master", port)
    assert master.do("await_master").result == Result.INVALID_USAGE, "it does not run yet"
    master.succeed("interrupt_on_sigterm")
    master.succeed("run_master")
    assert master.do("run_master").result == Result.INVALID_USAGE
    peer.become_peer(port)
    assert peer.do("connect").result == 0
    master.order("await_master")
    master.signal(signal.SIGTERM)
    assert master.answer("await_master").result == 0
    master.succeed("destroy_master")
    assert master.do("destroy_master").result == Result.INVALID_ARGUMENT
    master.succeed("create_master", port)
    master.succeed("interrupt_master")
    master.succeed("run_master")
    assert master.do("await_master").result == 0, "one that was interrupted before it ran is over at once"


def test_many_threads_make_calls_at_once(master, tmp_path):
    program = compile_program("gcc", HERE / "threads.c", tmp_path / "threads")
    command = [str(program), str(master.port), "8", "5"]
    pipes = {"stdout": subprocess.PIPE, "text": True, "env": environment()}
    peers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    assert [peer.communicate(timeout=PATIENCE_S)[0] for peer in peers] == ["ok\n", "ok\n"]
    assert [peer.returncode for peer in peers] == [0, 0]


def test_a_port_that_is_taken_is_named(master, start):
    second = start()
    second.succeed("create_master", master.port)
    taken = second.do("run_master")
    assert taken.result == Result.INVALID_USAGE
    assert f"cannot listen on 127.0.0.1:{master.port}" in taken.text


def test_a_master_on_ipv6_is_found(start_master, start):
    master = start_master("[::1]:0")
    peer = start().become_peer(master.port, six=1)
    assert peer.do("connect").result == 0


def test_the_first_call_is_quick(start):
    assert float(start().succeed("init")["seconds"]) < allow(SECOND_S / 2)
