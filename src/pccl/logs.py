"""Log lines for people and the event log for programs: the same facts, once each.

Owns the loggers (`pccl.master`, `pccl.peer`, `pccl.collective`, `pccl.state`, `pccl.link`), their one handler where the
program has none, and the file that `PCCL_EVENTS` names. Must not know why anything is told.
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from pccl.config import LOG_LEVELS
from pccl.core.effects.both import Note
from pccl.environment import look_up, misspelt
from pccl.errors import UsageError

FIELDS = ("event", "run", "epoch", "peer", "peer_name", "tag", "seconds", "bytes", "waited_for")
"""What a record of ours may have besides its sentence. A record's own `name` is that of its logger, so that of a peer
is `peer_name` there; in JSON it is `name`."""

SUBJECTS = ("master", "peer", "collective", "state", "link")

_FORMATS = ("text", "json")

_OF_PEERS = {"transfer": "state", "transferred": "state"}
"""Which logger a peer's notes go to, if not to `pccl.peer`."""


class Teller:
    """Tells what happens to one master or peer."""

    def __init__(self, side: str, facts: Callable[[], Mapping[str, object]] = dict) -> None:
        """`side` is "master" or "peer"; `facts` are the same for all that is told at a moment: run, epoch, peer."""
        self._side = side
        self._facts = facts

    def note(self, note: Note) -> None:
        """A fact from a core. One without words is none."""
        if note.reason:
            subject = self._side if self._side == "master" else _OF_PEERS.get(note.event, self._side)
            fields = {"peer": note.peer, "seconds": note.seconds, "waited_for": list(note.waited_for)}
            level = logging.WARNING if note.warns else logging.INFO
            self.tell(subject, level, note.event, note.reason, **fields)

    def tell(self, subject: str, level: int, event: str, sentence: str, **fields: object) -> None:
        """One line, and one event."""
        logger = logging.getLogger(f"pccl.{subject}")
        enabled, events = logger.isEnabledFor(level), _events
        if not enabled and events is None:
            return
        given = {name: value for name, value in fields.items() if value not in (None, "", [])}
        known = {"event": event, **self._facts(), **given}
        if enabled:
            # The sentence is no format: a name in it may have any characters.
            logger.log(level, "%s", sentence, extra={name: known.get(name) for name in FIELDS})
        if events is not None:
            events.write(_facts_of(time.time(), logging.getLevelName(level), logger.name, sentence, known))


def _facts_of(at: float, level: str, logger: str, sentence: str, fields: Mapping[str, object]) -> dict[str, object]:
    """One JSON object: an event, or a line."""
    shown = {"name" if name == "peer_name" else name: value for name, value in fields.items() if value is not None}
    return {"time": round(at, 3), "level": level, "logger": logger, **shown, "message": sentence}


# ── the event log ────────────────────────────────────────────────────────────────────────────────────────────────────


class EventLog:
    """A file of JSON lines. Several processes may append to the same one: each line is one write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, facts: Mapping[str, object]) -> None:
        """One event. A disk that is full must not end a training run: what cannot be written is said once."""
        line = json.dumps(facts, default=str, ensure_ascii=True) + "\n"
        with self._lock:
            if self._descriptor < 0:
                return
            try:
                os.write(self._descriptor, line.encode())
            except OSError as error:
                os.close(self._descriptor)
                self._descriptor = -1
                logging.getLogger("pccl").warning("PCCL_EVENTS: no more events in %s: %s", self.path, error)


_events: EventLog | None = None


def _open_events() -> None:
    global _events
    path = look_up("PCCL_EVENTS")
    if path == (_events.path if _events is not None else ""):
        return
    try:
        _events = EventLog(path) if path else None
    except OSError as error:
        raise UsageError(f"PCCL_EVENTS must be a file that can be appended to, got {path!r}: {error}") from error


# ── handlers and formats ─────────────────────────────────────────────────────────────────────────────────────────────


class _Json(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name in FIELDS if (value := getattr(record, name, None)) not in (None, "", [])}
        facts = _facts_of(record.created, record.levelname, record.name, record.getMessage(), fields)
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str, ensure_ascii=True)


def formatter(text: str = "%(asctime)s %(name)s %(levelname)s %(message)s") -> logging.Formatter:
    """As `PCCL_LOG_FORMAT` says: this text, or JSON."""
    name = look_up("PCCL_LOG_FORMAT", _FORMATS[0]).lower()
    if name not in _FORMATS:
        raise UsageError(f"PCCL_LOG_FORMAT must be one of {', '.join(_FORMATS)}, got {name!r}")
    return _Json() if name == "json" else logging.Formatter(text, "%Y-%m-%d %H:%M:%S")


class _LastResort(logging.StreamHandler[TextIO]):
    """Prints lines of ours that no handler of the program gets. Which there are is looked up for each line, because
    programs may configure logging at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(formatter())

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        """Looked up for each line: notebooks and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        super().emit(record)


_warned: set[str] = set()
"""Variables whose names were found to be wrong, and said so."""


def configure() -> None:
    """Obey `PCCL_LOG_LEVEL`, `PCCL_LOG_FORMAT` and `PCCL_EVENTS`, and name variables that nothing reads.

    By default Python shows WARNING and above, which is the level of waits and losses: a training script that stands
    still names the peers it waits for without any setting. PCCL prints errors only, and a run that waits for a lost
    peer then looks like any other."""
    logger = logging.getLogger("pccl")
    level = look_up("PCCL_LOG_LEVEL")
    if level:
        if level.upper() not in LOG_LEVELS:
            raise UsageError(f"PCCL_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, got {level!r}")
        logger.setLevel(LOG_LEVELS[level.upper()])
    ours = [handler for handler in logger.handlers if isinstance(handler, _LastResort)]
    if ours:
        ours[0].setFormatter(formatter())
    else:
        logger.addHandler(_LastResort())
    _open_events()
    for name, nearest in misspelt():
        if name not in _warned:
            _warned.add(name)
            logger.warning("%s is set, and nothing reads it%s", name, f"; did you mean {nearest}?" if nearest else "")


def print_on(stream: TextIO) -> None:
    """For a command whose lines are its output, not its diagnostics: all news, here and nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("pccl")
    logger.addHandler(handler)
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def forget(_: Any = None) -> None:
    """For tests: what was said or opened before does not count."""
    global _events
    _warned.clear()
    _events = None
