"""`pccl token new | revoke | list`: who may come in. Works on the files of the master's secret, and needs no master.

Owns what is printed. A token is printed once, and kept nowhere.
"""

import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pccl.cli.exits import Exit
from pccl.config import DEFAULT_PORT
from pccl.environment import look_up
from pccl.errors import UsageError
from pccl.security import certificate
from pccl.security.control import certificate_seed
from pccl.security.ledger import Ledger
from pccl.security.secret import MasterSecret, default_path, load
from pccl.security.tokens import ID_BYTES, Claim, Role, first_claim, mint

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(\d{1,6})([mhdw])")


def find_secret(file: str | None, port: int) -> MasterSecret:
    """That of the master whose tokens are meant. Raises `UsageError`."""
    given = file or look_up("PCCL_SECRET_FILE")
    return load(Path(given).expanduser() if given else default_path(port or DEFAULT_PORT))


def make(secret: MasterSecret, role: str, expires: str, brings_state: bool, out: TextIO) -> int:
    """Print a new token."""
    if brings_state and role != "peer":
        raise UsageError(f"--brings-state must stand beside --role peer, got {role}")
    ends = int(time.time()) + _span_s(expires) if expires != "never" else 0
    claim = Claim(Role[role.upper()], secrets.token_bytes(ID_BYTES), ends, brings_state)
    pin = certificate.make(certificate_seed(secret)).pin
    _ledger(secret).made(claim)
    print(mint(secret, claim, pin).text(), file=out)
    return Exit.DONE


def revoke(secret: MasterSecret, names: Sequence[str], out: TextIO) -> int:
    """From now on these tokens admit no connection; a master that runs learns it within a second."""
    ledger = _ledger(secret)
    known = {each.id for each in ledger.entries} | {first_claim(secret).name}
    for name in names:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise UsageError(f"ID must be that of a token of this secret, got {name!r}; there are {listed}")
    for name in names:
        ledger.revoke(name)
        print(f"{name} is revoked", file=out)
    return Exit.DONE


def show(secret: MasterSecret, out: TextIO) -> int:
    """All tokens by id; what is behind an id is not known here, and cannot be printed again."""
    ledger, first = _ledger(secret), first_claim(secret).name
    print(f"{first}  peer+state  never{_state(first, 0, ledger)}  (printed by `pccl master`)", file=out)
    for each in ledger.entries:
        ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.expires_unix_s)) if each.expires_unix_s else "never"
        print(f"{each.id}  {each.role}  {ends}{_state(each.id, each.expires_unix_s, ledger)}", file=out)
    return Exit.DONE


def _state(name: str, expires_unix_s: int, ledger: Ledger) -> str:
    if name in ledger.revoked:
        return "  revoked"
    return "  expired" if 0 < expires_unix_s <= time.time() else ""


def _ledger(secret: MasterSecret) -> Ledger:
    assert secret.path is not None, "it was read from a file"
    return Ledger.beside(secret.path)


def _span_s(text: str) -> int:
    found = _SPAN.fullmatch(text)
    if found is None or not int(found[1]):
        raise UsageError(f"--expires must be a number and m, h, d or w, or never, got {text!r}; write it like 7d")
    return int(found[1]) * _UNITS[found[2]]
