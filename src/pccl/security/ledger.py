"""The ledger of tokens: a file beside the secret that says which were made and which are revoked.

Owns that file. A line is added and none is ever changed, so that `pccl token` and a running master need no lock. A
token that the ledger does not know is valid all the same: what counts is that it is not revoked.
"""

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from pccl.errors import UsageError
from pccl.security.tokens import Claim

log = logging.getLogger("pccl.master")

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
    """One file. Missing is empty; but what was read of it once as revoked stays so in this process."""

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
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab+") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                # Behind a line that was cut short this one would be lost with it.
                file.write((b"" if file.read(1) in (b"", b"\n") else b"\n") + line.encode())
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
                text = file.read(LEDGER_MAX + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"token: cannot read {self._path}: {error.strerror}") from error
        if len(text) > LEDGER_MAX:  # What stands behind that may be a revocation.
            raise UsageError(
                f"token: {self._path} must have at most {LEDGER_MAX:,} bytes, got {now.st_size:,}; take out lines of "
                "tokens that have expired, and none that says `revoked`"
            )
        revoked, entries = set(), []
        for number, line in enumerate(text.decode(errors="replace").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                told = _parse(line)
            except (ValueError, KeyError, TypeError):
                # One that was cut short by a full disk, or edited by hand: the others count.
                log.warning("%s: line %d is none of a ledger and is passed over", self._path, number)
                continue
            entries += [told] if isinstance(told, Entry) else []
            revoked |= {told} if isinstance(told, str) else set()
        self._revoked, self._entries = self._revoked | revoked, tuple(entries)
        self._seen = (now.st_mtime_ns, now.st_size)


def _parse(line: str) -> Entry | str:
    """A token that was made, or the id of one that was revoked. Raises `ValueError`, `KeyError` or `TypeError`."""
    facts = json.loads(line)
    if "revoked" in facts:
        return str(facts["revoked"])
    made, role, expires, at = facts["made"], facts["role"], facts["expires"], facts["at"]
    return Entry(str(made), str(role), int(expires), int(at), str(facts.get("note", "")))
