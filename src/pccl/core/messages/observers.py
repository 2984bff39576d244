"""What an observer asks of a master, and the answers. An observer is no peer: it asks once on a connection, and no
decision follows from it."""

from typing import Annotated

from msgspec import Meta, Struct

from pccl.core.fields import Port, Text
from pccl.core.messages.to_peer import Kick
from pccl.core.status import Status


class AskStatus(Struct, frozen=True, tag=True):
    """What is the run at this moment? First and only message of a connection; answered with `Status`."""


class AskProbe(Struct, frozen=True, tag=True):
    """Can others dial me? Dial this port of the address that you see me come from, as a neighbour would. First and only
    message of a connection; answered with `Probed`. There is no other address in it: any program may ask, and the
    master shall not dial strangers for it."""

    port: Port
    nonce: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z]+\Z")]
    """Sent to the program that answers there, so that I can tell your dial from that of a stranger."""


class Probed(Struct, frozen=True, tag=True):
    """What came of the dial."""

    host: Annotated[str, Meta(max_length=255)]
    """Which address was dialled."""
    cause: Text
    """Why it failed; empty if it came through."""
    seconds: float


ToObserver = Status | Probed | Kick
