"""The master's secret: 32 random bytes in a file that its owner alone can read.

Owns the file and what is derived from its content. The process that has it is the master: it is never sent, printed or
logged.
"""

import base64
import binascii
import hmac
import os
import secrets
import stat
from pathlib import Path

from pccl.errors import UsageError

SECRET_BYTES = 32
_HEAD = "pccl-secret-1 "
_FILE_MAX = 4096
"""A file that is longer is something else."""


class MasterSecret:
    """What a master proves itself with, at every restart the same."""

    def __init__(self, content: bytes, path: Path | None = None) -> None:
        self._content = content
        self.path = path
        """Where it lies; None if only this process has it."""

    def __repr__(self) -> str:
        return f"MasterSecret({str(self.path) if self.path else 'of this process'!r})"

    def derive(self, purpose: str, *parts: bytes) -> bytes:
        """32 bytes for one purpose: from them neither the secret nor those of another purpose can be found."""
        message = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose.encode(), *parts))
        return hmac.digest(self._content, message, "sha256")


def default_path(port: int) -> Path:
    """Where the secret of the master on this port lies unless another place is given."""
    base = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return folder / "pccl" / f"{port}.secret"


def load_or_make(path: Path) -> MasterSecret:
    """The secret in this file, which is made if it is not there. Raises `UsageError`."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(path)
        return load(path)
    except OSError as error:
        raise UsageError(f"secret (PCCL_SECRET_FILE): cannot make {path}: {error.strerror}") from error


def load(path: Path) -> MasterSecret:
    """The secret in this file. Raises `UsageError` if it cannot be one, or others can read it too."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_FILE_MAX).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise UsageError(
            f"secret (PCCL_SECRET_FILE) must be a file that can be read, got {path}: {error.strerror}; the "
            "master makes it when it is first started: do this on its machine, as its user, with its --secret or --port"
        ) from error
    if mode & 0o077:
        raise UsageError(
            f"secret (PCCL_SECRET_FILE) must be readable by its owner alone, got mode {mode:04o}; chmod 600 {path}"
        )
    try:
        content = base64.urlsafe_b64decode(text.removeprefix(_HEAD).encode())
    except (binascii.Error, ValueError):
        content = b""
    if not text.startswith(_HEAD) or len(content) != SECRET_BYTES:
        raise UsageError(
            f"secret (PCCL_SECRET_FILE) must be a file that `pccl master` made, got something else in {path}; "
            "give another name, and a new secret is made there"
        )
    return MasterSecret(content, path)


def _make(path: Path) -> None:
    """If it is not there. Written beside it and linked, so that no other process finds half of it."""
    if path.exists():
        return
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{_HEAD}{base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            return  # Another master was faster: its secret is the one.
    finally:
        beside.unlink()
