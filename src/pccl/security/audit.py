"""The audit log: who came with which token, was refused, was put out or left, one line of JSON each, beside the secret.

Owns that file. It is written and never read here; a line holds no secret. Strangers cannot fill the disk with it: their
refusals are counted, and a few are written.
"""

import json
import os
import time
from pathlib import Path

from pccl.errors import UsageError
from pccl.security.secret import default_path

REFUSALS_PER_MINUTE = 60
"""Written, of all addresses together: enough to see who tries, and 10 MB a day at most."""

NOTED = ("joined", "kicked", "left", "gone", "refused", "operator")
"""Events of the master's log that are also lines here."""


class Audit:
    """One file, which is opened for each line: it may be rotated at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._minute = 0
        self._refusals = 0

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
        minute = int(time.time() // 60)
        left_out = max(0, self._refusals - REFUSALS_PER_MINUTE)
        if minute != self._minute:
            self._minute, self._refusals = minute, 0
            if left_out:
                self.write("refused", host="many", count=left_out)
        self._refusals += 1
        if self._refusals <= REFUSALS_PER_MINUTE:
            self.write("refused", host=host, reason=reason, **shown)

    def write(self, event: str, **facts: object) -> None:
        """One line. Raises `OSError`."""
        line = json.dumps({"at": round(time.time(), 3), "event": event, **facts}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(line.encode())
