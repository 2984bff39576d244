"""Log lines and the event log: each fact once, with fields, whatever the program has configured."""

import json
import logging
import os
import subprocess
import sys

import pytest

from pccl import logs
from pccl.core.effects.both import Note
from pccl.environment import PCCLS_OWN, VARIABLES, misspelt
from pccl.errors import UsageError
from pccl.logs import Teller, configure

HOSTILE = "a\x1b[31m\nb</td>{}%s"


@pytest.fixture
def logger():
    it = logging.getLogger("pccl")
    level, handlers = it.level, list(it.handlers)
    yield it
    it.setLevel(level)
    it.handlers = handlers


@pytest.mark.parametrize("name", ["TRACE", "DEBUG", "INFO", "WARN", "ERR", "FATAL", "NONE", "debug"])
def test_the_log_levels_of_pccl_are_known(monkeypatch, logger, name):
    monkeypatch.setenv("PCCL_LOG_LEVEL", name)
    configure()
    assert logger.isEnabledFor(logging.CRITICAL) is (name != "NONE")


CONFIGURED = {
    "by nobody": ["peer()"],
    "before": ["logging.basicConfig(format=mine)", "peer()"],
    "after": ["peer()", "logging.basicConfig(format=mine)"],
    "between two": ["peer()", "logging.basicConfig(format=mine)", "peer()"],
    "on our logger": ["peer()", "log.addHandler(logging.StreamHandler())", "log.handlers[-1].setFormatter(formatter)"],
}


@pytest.mark.parametrize("order", CONFIGURED)
def test_each_line_is_logged_once(order):
    """Whoever configures logging, and when: a program often does so after its imports and first objects."""
    lines = [
        "import logging, pccl",
        "mine = 'mine: %(message)s'",
        "log, formatter = logging.getLogger('pccl'), logging.Formatter(mine)",
        "peer = lambda: pccl.Communicator('127.0.0.1:9')",
        *CONFIGURED[order],
        "log.info('news')",
    ]
    environment = {**os.environ, "PCCL_LOG_LEVEL": "INFO"}
    command = [sys.executable, "-c", "\n".join(lines)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr.splitlines()
    assert len(told) == 1, told
    assert told[0].endswith("pccl INFO news" if order == "by nobody" else "mine: news")


def test_an_unknown_log_level_is_named(monkeypatch, logger):
    monkeypatch.setenv("PCCL_LOG_LEVEL", "LOUD")
    with pytest.raises(UsageError, match="PCCL_LOG_LEVEL"):
        configure()


def teller():
    return Teller("peer", lambda: {"run": "r1", "epoch": 3, "peer": "ab" * 16, "peer_name": "tokyo-2"})


def test_a_record_has_fields(caplog):
    caplog.set_level(logging.INFO, "pccl")
    teller().tell("state", logging.INFO, "transferred", "100% of 5 bytes", bytes=5, seconds=0.25, tag=None)
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("pccl.state", "100% of 5 bytes")
    facts = [getattr(record, name) for name in logs.FIELDS]
    assert facts == ["transferred", "r1", 3, "ab" * 16, "tokyo-2", None, 0.25, 5, None]


def test_a_note_goes_to_the_logger_of_its_subject(caplog):
    caplog.set_level(logging.INFO, "pccl")
    teller().note(Note("x waits", "waits", warns=True, waited_for=("cd" * 16,)))
    teller().note(Note("it goes", "transfer"))
    teller().note(Note(""))
    Teller("master").note(Note("it goes", "transfer", peer="cd" * 16))
    told = [(record.name, record.levelname, record.event, record.peer) for record in caplog.records]
    assert told == [
        ("pccl.peer", "WARNING", "waits", "ab" * 16),
        ("pccl.state", "INFO", "transfer", "ab" * 16),
        ("pccl.master", "INFO", "transfer", "cd" * 16),
    ]
    assert caplog.records[0].waited_for == ["cd" * 16]


@pytest.fixture
def events(tmp_path, monkeypatch, logger):
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("PCCL_EVENTS", str(path))
    logs.forget()
    configure()
    yield path
    logs.forget()


def test_events_are_json_lines_whatever_the_level(events, logger):
    logger.setLevel(logging.ERROR)
    teller().tell("peer", logging.INFO, "joined", HOSTILE, seconds=1.5)
    teller().tell("peer", logging.WARNING, "lost", "gone", peer="cd" * 16)
    first, second = map(json.loads, events.read_text().splitlines())
    assert first.pop("time") > 1e9
    assert first == {
        "level": "INFO",
        "logger": "pccl.peer",
        "event": "joined",
        "run": "r1",
        "epoch": 3,
        "peer": "ab" * 16,
        "name": "tokyo-2",
        "seconds": 1.5,
        "message": HOSTILE,
    }
    assert (second["event"], second["peer"]) == ("lost", "cd" * 16)
    assert events.read_bytes().isascii()
    assert b"\x1b" not in events.read_bytes()


def test_an_event_log_that_cannot_be_opened_is_named(tmp_path, monkeypatch, logger):
    monkeypatch.setenv("PCCL_EVENTS", str(tmp_path / "missing" / "events"))
    with pytest.raises(UsageError, match="PCCL_EVENTS"):
        configure()


def test_a_full_disk_is_said_once_and_ends_nothing(monkeypatch, logger, caplog):
    monkeypatch.setenv("PCCL_EVENTS", "/dev/full")
    logs.forget()
    configure()
    for _ in range(3):
        teller().tell("peer", logging.DEBUG, "joined", "x")
    logs.forget()
    assert [record.getMessage() for record in caplog.records if "no more events" in record.getMessage()] == [
        "PCCL_EVENTS: no more events in /dev/full: [Errno 28] No space left on device"
    ]


def test_lines_as_json(monkeypatch):
    code = (
        "import logging, pccl; from pccl.logs import Teller; pccl.Communicator('127.0.0.1:9');"
        f"Teller('peer', lambda: {{'epoch': 3}}).tell('link', logging.WARNING, 'dial failed', {HOSTILE!r}, tag=7)"
    )
    environment = {**os.environ, "PCCL_LOG_FORMAT": "json"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stderr
    (line,) = told.splitlines()
    facts = json.loads(line)
    assert (facts["logger"], facts["event"], facts["epoch"], facts["tag"]) == ("pccl.link", "dial failed", 3, 7)
    assert facts["message"] == HOSTILE


def test_an_unknown_format_is_named(monkeypatch, logger):
    monkeypatch.setenv("PCCL_LOG_FORMAT", "xml")
    with pytest.raises(UsageError, match="PCCL_LOG_FORMAT must be one of text, json, got 'xml'"):
        configure()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PCCL_SILENCE", "PCCL_SILENCE_S"),
        ("PCCL_LOGLEVEL", "PCCL_LOG_LEVEL"),
        ("PCCL_MASTR", "PCCL_MASTER"),
        ("PCCL_ANOUNCE", "PCCL_ANNOUNCE"),
        ("PCCL_QQQQ", ""),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest(name, nearest):
    assert misspelt([name, "PATH", *VARIABLES, *PCCLS_OWN]) == [(name, nearest)]


def test_a_misspelt_variable_is_a_warning_once(monkeypatch, logger, caplog):
    logs.forget()
    monkeypatch.setenv("PCCL_SILENCE", "3")
    configure()
    configure()
    assert [record.getMessage() for record in caplog.records] == [
        "PCCL_SILENCE is set, and nothing reads it; did you mean PCCL_SILENCE_S?"
    ]


def test_every_variable_that_the_sources_read_is_known():
    import re
    from pathlib import Path

    text = "".join(path.read_text() for path in (Path(__file__).parents[2] / "src").rglob("*.py"))
    named = set(re.findall(r"PCCL_[A-Z0-9_]*[A-Z0-9]\b", text))
    assert named - {*VARIABLES, *PCCLS_OWN} - {"PCCL_TEST", "PCCL_CI"} == set()
