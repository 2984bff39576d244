"""What commands that look at a run have in common: the address, the question, and the words when no answer comes."""

import asyncio
from typing import NamedTuple

from pccl.config import Address, find_master
from pccl.core.messages.observers import AskStatus
from pccl.core.status import Status
from pccl.credentials import NOT_PASSED, CertificateSettings, find_certificates, find_token
from pccl.net.observing import Unreachable, ask
from pccl.security.control import MakeGuard
from pccl.security.entrance import make_guard

TIMEOUT_S = 5.0
"""SYN is sent again after 1 s and 3 s: two losses fit in."""

REMEDY = {
    "resolve": "check the name",
    "connect": "is the master running there? Start it with `pccl master`, or check address, port and firewall",
    "answer": "is it a master? Check the port",
    "door": "check that this is the master's address, and that token or certificate are for it",
    "protocol": "is it a master of this release? Check the port, and `pccl version` on both machines",
    "refused": "try again",
}


class Entrance(NamedTuple):
    """Where a master is, and what lets us in."""

    address: Address
    make_guard: MakeGuard | None

    def __str__(self) -> str:
        return str(self.address)


def find_entrance(address: str | None, certificates: CertificateSettings = NOT_PASSED) -> Entrance:
    """Of the master that a command is about: what was passed, else the environment's. Raises `UsageError`."""
    token = find_token(address, None)
    files = find_certificates(certificates, "token (PCCL_TOKEN)" if token else "")
    return Entrance(find_master(address), make_guard(token, files))


def status_of(entrance: Entrance, timeout_s: float = TIMEOUT_S) -> Status:
    """The status of the run behind it. Raises `Unreachable`."""
    answer = asyncio.run(ask(entrance.address, AskStatus(), timeout_s, entrance.make_guard))
    if not isinstance(answer, Status):
        raise Unreachable("protocol", f"it answered with {type(answer).__name__}")
    return answer


def in_words(entrance: Entrance, error: Unreachable) -> str:
    """Why there is no answer, and what to do."""
    return f"no master at {entrance}: {error}; {REMEDY[error.phase]}"
