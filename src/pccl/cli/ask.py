"""What commands that look at a run have in common: the address, the question, and the words when no answer comes."""

import asyncio

from pccl.config import Address
from pccl.core.messages.observers import AskStatus
from pccl.core.status import Status
from pccl.net.observing import Unreachable, ask

TIMEOUT_S = 5.0
"""SYN is sent again after 1 s and 3 s: two losses fit in."""

REMEDY = {
    "resolve": "check the name",
    "connect": "is the master running there? Start it with `pccl master`, or check address, port and firewall",
    "answer": "is it a master? Check the port",
    "protocol": "is it a master of this release? Check the port, and `pccl version` on both machines",
    "refused": "try again",
}


def status_of(address: Address, timeout_s: float = TIMEOUT_S) -> Status:
    """The status of the run at this address. Raises `Unreachable`."""
    answer = asyncio.run(ask(address, AskStatus(), timeout_s))
    if not isinstance(answer, Status):
        raise Unreachable("protocol", f"it answered with {type(answer).__name__}")
    return answer


def in_words(address: Address, error: Unreachable) -> str:
    """Why there is no answer, and what to do."""
    return f"no master at {address}: {error}; {REMEDY[error.phase]}"
