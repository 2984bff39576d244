"""A guest behaves: the library leaves a program's signals, locale, forks and end as they are without it."""

import contextlib
import os
import queue
import signal
import subprocess
import time

import pytest

from pccl.types import Result
from tests.c_api.building import environment, parse
from tests.c_api.test_functions import admitted
from tests.e2e.harness import PATIENCE_S
from tests.patience import allow

SOON_S = 1.0
LOSS_S = 2.0
UNTOUCHED = {"changed": "0", "blocked": "0"}


def await_size(peer, size):
    """Ask until the roster has this size."""
    deadline = time.monotonic() + PATIENCE_S
    while peer.succeed("size", 1)["size"] != str(size):
        assert time.monotonic() < deadline


def ended(process, within_s):
    """Its exit status, which must come within this time on a quiet machine."""
    return process.process.wait(allow(within_s))


@pytest.fixture
def two(master, start):
    """A ring of two."""
    first, second = (start().become_peer(master.port) for _ in range(2))
    assert first.do("connect").result == 0
    admitted(second, [first])
    return first, second


def in_step(first, second, count=1_000):
    """Both reduce, and sync."""
    for order in (("reduce", count, 1, 0, 0, 0, 0), ("sync", 1, 5, count, 0, "w")):
        for each in (first, second):
            each.order(*order)
        for each in (first, second):
            assert each.answer(order[0]).result == 0


def test_signals_and_locale_are_as_they_were(master, start):
    first = start(env=environment(LC_ALL="C.UTF-8"))
    assert first.succeed("compare")["locale"] == "C", "a program in C has not asked for another"
    second = start().become_peer(master.port)
    first.become_peer(master.port)
    assert first.do("connect").result == 0
    admitted(second, [first])
    in_step(first, second)
    for each in (first, second):
        facts = each.succeed("compare")
        assert UNTOUCHED.items() <= facts.items()
        assert facts["locale"] == "C"
        each.succeed("destroy")
        assert UNTOUCHED.items() <= each.succeed("compare").items()


@pytest.mark.parametrize("hidden", [0, 1])
def test_a_thousand_alarms_a_second_land_on_no_thread_of_ours(two, hidden):
    for each in two:
        each.succeed("alarms", hidden)
    for _ in range(5):
        in_step(*two, count=300_000)
    for each in two:
        facts = each.succeed("compare")
        assert facts["strays"] == "0"
        assert facts["alarms"] == "0" if hidden else int(facts["alarms"]) > 0
        assert UNTOUCHED.items() <= facts.items()


def test_alarms_during_the_first_call_land_on_no_thread_of_ours(master, start):
    peer = start()
    peer.succeed("alarms", 1)
    peer.become_peer(master.port)
    assert peer.do("connect").result == 0
    facts = peer.succeed("compare")
    assert (facts["alarms"], facts["strays"]) == ("0", "0")


def test_ctrl_c_ends_a_program_that_waits_to_be_admitted(master, start):
    first, second = (start().become_peer(master.port) for _ in range(2))
    assert first.do("connect").result == 0
    second.order("connect")
    assert first.do("await_pending").result == 0
    second.signal(signal.SIGINT)
    assert ended(second, SOON_S) == -signal.SIGINT


def test_ctrl_c_ends_a_program_that_waits_in_a_collective(two):
    first, second = two
    first.order("reduce", 1_000, 1, 0, 0, 0, 0)
    with pytest.raises(queue.Empty):
        first.line(0.3)
    first.signal(signal.SIGINT)
    assert ended(first, SOON_S) == -signal.SIGINT
    await_size(second, 1)


@pytest.mark.parametrize("moment_s", [0.0, 0.02, 0.06, 0.12])
def test_ctrl_c_in_the_first_call_is_not_lost(start, moment_s):
    peer = start()
    peer.order("init")
    with contextlib.suppress(queue.Empty):  # What is tested is that it may come at any moment.
        peer.line(moment_s)
    peer.signal(signal.SIGINT)
    assert ended(peer, SOON_S) == -signal.SIGINT


def test_a_forked_child_has_no_part_and_hides_no_death(two):
    first, second = two
    first.order("fork")
    answers = {answer.order: answer for answer in (parse_line(first), parse_line(first))}
    child = answers["child"]
    try:
        assert child.facts["results"] == "4,4,4,4"
        assert float(child.facts["seconds"]) < allow(SOON_S)
        assert "forked" in child.text
        in_step(first, second)
        began = time.monotonic()
        first.process.kill()
        await_size(second, 1)
        assert time.monotonic() - began < allow(LOSS_S)
        os.kill(int(answers["fork"].facts["child"]), 0)  # which lives
    finally:
        os.kill(int(answers["fork"].facts["child"]), signal.SIGKILL)


def parse_line(process):
    return parse(process.line())


@pytest.mark.parametrize("call", ["connect", "reduce", "await_master"])
def test_exit_in_the_middle_of_a_call_keeps_its_code(master, start, call):
    first, second = (start().become_peer(master.port) for _ in range(2))
    assert first.do("connect").result == 0
    if call == "reduce":
        admitted(second, [first])
    if call == "await_master":
        second.succeed("create_master", 0)
        second.succeed("run_master")
    second.succeed("exit_later", 7, 300)
    second.order(*(("reduce", 1_000, 1, 0, 0, 0, 0) if call == "reduce" else (call,)))
    assert second.process.wait(PATIENCE_S) == 7
    await_size(first, 1)


def test_exit_while_bytes_move_keeps_its_code(two):
    first, second = two
    for each in two:
        each.succeed("launch", 0, 20_000_000, 1)
    second.succeed("exit_later", 7, 10)
    for each in two:
        each.order("await", 0)
    assert second.process.wait(PATIENCE_S) == 7
    assert first.answer("await").result in (0, Result.RANK_CONNECTION_LOST)


def test_exit_without_destroying_anything_keeps_its_code(two):
    first, second = two
    in_step(first, second)
    second.order("exit", 3)
    assert second.process.wait(PATIENCE_S) == 3
    await_size(first, 1)


def test_a_program_that_ends_by_sigterm_does_so_as_before(two):
    first, second = two
    second.order("reduce", 1_000, 1, 0, 0, 0, 0)
    second.signal(signal.SIGTERM)
    assert ended(second, SOON_S) == -signal.SIGTERM
    await_size(first, 1)


def test_nothing_is_printed_on_stdout(actor, master):
    done = subprocess.run(
        [str(actor)], input=f"init\ncreate {master.port} 0 0\nconnect\n", env=environment(PCCL_LOG_LEVEL="INFO"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ready", "init", "create", "connect"]
    assert "is accepted" in done.stderr
