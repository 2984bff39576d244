"""What lets a process in: a token, or certificate files. Passed as an argument, else by the environment.

Owns how they are found, and that there are not both. Must not know what is inside them.
"""

import atexit
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from pccl.environment import look_up
from pccl.errors import UsageError

TOKEN_LIKE = re.compile(r"[\w-]{64,}")
"""What may be a token, wherever it stands: no part of a host name has more than 63 characters."""

TOKEN_FILE_MAX = 4096
"""Bytes that are read of it; a token has 80."""

Given = str | os.PathLike[str] | None


class CertificateSettings(NamedTuple):
    """Files of certificates, in the words of their user; None means: not passed, and empty: none."""

    ca: Given = None
    cert: Given = None
    key: Given = None


NOT_PASSED = CertificateSettings()


class CertificateFiles(NamedTuple):
    """Three files in PEM."""

    ca: Path
    """Whose certificates are believed."""
    cert: Path
    """Our own, and what leads from it to the CA."""
    key: Path
    """Its private key."""


def find_certificates(given: CertificateSettings, other: str) -> CertificateFiles | None:
    """The files of an own CA: those that were passed, else the environment's; None if there are none. `other` names the
    setting that lets in by other means, if there is one. Raises `UsageError`."""
    texts: dict[str, str] = {}
    for name, value in given._asdict().items():
        texts[name] = look_up(f"PCCL_{name.upper()}") if value is None else _path(name, value)
    there = [f"{name} (PCCL_{name.upper()})" for name, text in texts.items() if text]
    if not there:
        return None
    missing = [f"{name} (PCCL_{name.upper()})" for name, text in texts.items() if not text]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} must be a file beside {' and '.join(there)}, got none; name all three"
        )
    if other:
        raise UsageError(
            f"{there[1]} and {other} must not both be set: certificates take the place of tokens; leave one of them out"
        )
    return CertificateFiles(*(Path(text).expanduser() for text in texts.values()))


def _path(name: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name} (PCCL_{name.upper()}) must be the name of a file, got {type(value).__name__}")
    return str(os.fspath(value))


def find_token(address: str | None, token: str | None) -> str:
    """What admits: what was passed, in the address or beside it, else the environment's. Empty: none was given."""
    if token is not None and not isinstance(token, str):
        raise UsageError(f"token (PCCL_TOKEN) must be a text, got {type(token).__name__}")
    given = _behind(token or "") or (address or "").partition("#")[2]
    given = given or _behind(look_up("PCCL_TOKEN")) or _behind(_token_in_file())
    return given or ("" if address else look_up("PCCL_MASTER").partition("#")[2])


def _behind(text: str) -> str:
    """Of the whole address that `pccl master` prints what follows the #; anything else as it is."""
    _, mark, token = text.partition("#")
    return token if mark else text


def _token_in_file() -> str:
    path = look_up("PCCL_TOKEN_FILE")
    if not path:
        return ""
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(TOKEN_FILE_MAX).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise UsageError(f"PCCL_TOKEN_FILE must be a file that can be read, got {path!r}: {error.strerror}") from error


def leave_in_environment(address: str) -> None:
    """For what this process runs. Its children inherit that, so the token lies in a file of its user, for as long as
    this process lives; one that is killed leaves the file."""
    place, _, token = address.partition("#")
    os.environ["PCCL_MASTER"] = place
    if not token:
        return
    descriptor, path = tempfile.mkstemp(prefix="pccl-", suffix=".token")  # mode 0600
    atexit.register(Path(path).unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    os.environ.pop("PCCL_TOKEN", None)  # It would go before the file's.
    os.environ["PCCL_TOKEN_FILE"] = path
