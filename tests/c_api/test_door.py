"""The door between C and Python, from the side of Python: no answer is 0, every failure has a code and a sentence."""

import ctypes
import os

import pytest

from pccl import c_api
from pccl.c_api import calls
from pccl.errors import CollectiveAborted, Kicked, MasterLost, TooFewPeers, UsageError
from pccl.types import Result

ROOM = 64


@pytest.fixture
def door():
    """Called as C calls it, with the words and room for a sentence."""
    table = c_api._Table(len(calls.CALLS), ROOM, None, -1)
    c_api.open_door(ctypes.addressof(table))
    assert table.interrupts >= 0
    entered = c_api._Door(table.door)

    def call(number, *words):
        text = ctypes.create_string_buffer(b"?" * ROOM + b"untouched", ROOM + 9)
        answer = entered(number, (ctypes.c_uint64 * 5)(*words), ctypes.addressof(text))
        assert text.raw.endswith(b"untouched")
        return answer, text.value.decode()

    yield call
    os.close(table.interrupts)  # The thread at its other end goes with it.


def raising(error):
    def call(*words):
        raise error

    return call


def test_a_success_is_not_0(door):
    assert door(0, 0)[0] == 1


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UsageError("so it is"), Result.INVALID_USAGE, "so it is"),
        (UsageError("this one", Result.INVALID_ARGUMENT), Result.INVALID_ARGUMENT, "this one"),
        (ValueError("this one"), Result.INVALID_ARGUMENT, "this one"),
        (TooFewPeers("alone"), Result.TOO_FEW_PEERS, "alone"),
        (CollectiveAborted("again", 0, ()), Result.RANK_CONNECTION_LOST, "again"),
        (Kicked("out"), Result.MASTER_CONNECTION_FAILED, "out"),
        (MasterLost("gone"), Result.MASTER_CONNECTION_FAILED, "gone"),
        (KeyError("x"), Result.INTERNAL_ERROR, "KeyError: 'x'"),
        (KeyboardInterrupt("now"), Result.INTERNAL_ERROR, "KeyboardInterrupt: now"),
        (UsageError("ä" * ROOM), Result.INVALID_USAGE, "ä" * ((ROOM - 1) // 2)),
        (UsageError("\udcff"), Result.INVALID_USAGE, "?"),
    ],
)
def test_each_failure_has_its_code_and_its_sentence(door, monkeypatch, error, code, sentence):
    monkeypatch.setattr(c_api, "CALLS", ((raising(error), 0),))
    assert door(0) == (code + 1, sentence)


def test_a_call_that_is_not_there_is_a_failure(door):
    assert door(len(calls.CALLS))[0] == Result.INTERNAL_ERROR + 1


def test_a_library_that_knows_other_calls_is_refused():
    table = c_api._Table(len(calls.CALLS) + 1, ROOM, None, -1)
    with pytest.raises(RuntimeError, match="libpccl"):
        c_api.open_door(ctypes.addressof(table))
    assert table.door is None
