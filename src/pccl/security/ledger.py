"""The ledger of tokens: a file beside the secret that says which were made and which are revoked.

Owns that file. A line is added and none is ever changed, so that `pccl token` and a running master need no lock. A
token that the ledger does not know is valid all the same: what counts is that it is not revoked.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from pccl.errors import UsageError
from pccl.security.tokens import Claim

LEDGER_MAX = 16 * 1024 * 1024
"""Bytes. A hundred thousand tokens; a master that reads it again after each revocation still answers in time."""


@dataclass(frozen=True)
class Entry:
    """A token that was made."""

    id: str
    role: str
    expires_unix_s: int
    made_unix_s: int
    note: str = ""


class Ledger:
    """One file. Missing is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._revoked: frozenset[str] = frozenset()
        self._entries: tuple[Entry, ...] = ()

    @classmethod
    def beside(cls, secret: Path) -> "Ledger":
        """That of a secret."""
        return cls(secret.with_suffix(".tokens"))

    def made(self, claim: Claim, note: str = "") -> None:
        """Write down that a token was made. Raises `UsageError`."""
        role = claim.role.name.lower() + ("+state" if claim.brings_state else "")
        self._append({"made": claim.name, "role": role, "expires": claim.expires_unix_s, "note": note})

    def revoke(self, name: str) -> None:
        """From now on this token admits no connection. Raises `UsageError`."""
        self._append({"revoked": name})

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Those that were made with `pccl token new`."""
        self._read()
        return self._entries

    @property
    def revoked(self) -> frozenset[str]:
        """Ids, as of now: a look at the file costs microseconds unless it has changed."""
        self._read()
        return self._revoked

    def _append(self, facts: dict[str, object]) -> None:
        line = json.dumps({**facts, "at": int(time.time())}) + "\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(f"token: cannot write {self._path}: {error.strerror}") from error

    def _read(self) -> None:
        try:
            now = os.stat(self._path)
            if (now.st_mtime_ns, now.st_size) == self._seen:
                return
            with self._path.open("rb") as file:
                lines = file.read(LEDGER_MAX).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"token: cannot read {self._path}: {error.strerror}") from error
        facts = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        self._revoked = frozenset(str(each["revoked"]) for each in facts if "revoked" in each)
        self._entries = tuple(
            Entry(
                str(each["made"]), str(each["role"]), int(each["expires"]), int(each["at"]), str(each.get("note", ""))
            )
            for each in facts
            if "made" in each
        )
        self._seen = (now.st_mtime_ns, now.st_size)
