"""The audit log: who came with which token, was refused, was put out or left, one line of JSON each, beside the secret.

Owns that file. It is written and never read here; a line holds no secret. Neither strangers nor one token can fill the
disk with it: lines are counted, a few are written in a minute, and how many were not.
"""

import json
import os
import time
from pathlib import Path

from pccl.errors import UsageError
from pccl.security.secret import default_path

REFUSALS_PER_MINUTE = 60
"""Written, of all addresses together: enough to see who tries, and 10 MB a day at most."""

ARRIVALS_PER_MINUTE = 240
"""Written, of one token or certificate: so many peers come back at once after a restart of the master, and 60 MB a day
at most."""

KEPT_MAX = 1024
"""Tokens and certificates whose lines are counted; the one that came longest ago is forgotten first."""

NOTED = ("joined", "kicked", "left", "gone", "refused", "operator")
"""Events of the master's log that are also lines here."""


class Audit:
    """One file, which is opened for each line: it may be rotated at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, tuple[int, int]] = {}
        """Of all strangers, and of each token or certificate: in which minute it came last, and how often."""

    @classmethod
    def beside(cls, secret: Path) -> "Audit":
        """That of a secret."""
        return cls(secret.with_suffix(".audit"))

    @classmethod
    def of_port(cls, port: int) -> "Audit":
        """That of a master without a secret, whose certificates may lie where no file can be written. Raises
        `UsageError`."""
        path = default_path(port).with_suffix(".audit")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the audit log must have a folder, got {error.strerror} for {path.parent}; set XDG_STATE_HOME to one"
            ) from error
        return cls(path)

    def refused(self, host: str, reason: str, **shown: str) -> None:
        """A connection was not let in, though it may have shown this."""
        self._write_some("refused", REFUSALS_PER_MINUTE, {"host": "many"}, "refused", host=host, reason=reason, **shown)

    def came(self, kind: str, name: str, event: str, /, **facts: object) -> None:
        """A connection was let in by the token or certificate of this name, and its first message is this event."""
        self._write_some(f"{kind} {name}", ARRIVALS_PER_MINUTE, {kind: name}, event, **{kind: name}, **facts)

    def _write_some(self, whose: str, most: int, many: dict[str, str], event: str, /, **facts: object) -> None:
        """One line, unless there were as many of these in this minute; with the next one how many were left out."""
        minute = int(time.time() // 60)
        began, count = self._written.pop(whose, (minute, 0))
        if began != minute:
            if count > most:
                self.write("left out", **many, count=count - most)
            count = 0
        self._written[whose] = minute, count + 1
        while len(self._written) > KEPT_MAX:
            del self._written[next(iter(self._written))]
        if count < most:
            self.write(event, **facts)

    def write(self, event: str, **facts: object) -> None:
        """One line. Raises `OSError`."""
        line = json.dumps({"at": round(time.time(), 3), "event": event, **facts}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(line.encode())
