"""What observers and operators ask of a master, and the answers. Neither is a peer: each asks once on a connection, and
from what an observer asks no decision follows."""

from typing import Annotated

from msgspec import Meta, Struct

from pccl.core.fields import Id, PeerName, Port, Text
from pccl.core.messages.to_peer import Kick
from pccl.core.status import Status


class AskStatus(Struct, frozen=True, tag=True):
    """What is the run at this moment? First and only message of a connection; answered with `Status`."""


class AskProbe(Struct, frozen=True, tag=True):
    """Can others dial me? Dial this port of the address that you see me come from, as a neighbour would. First and only
    message of a connection; answered with `Probed`. It names no other address: any program may ask, and a master
    that dialled any address on request could be used to attack others."""

    port: Port
    nonce: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z]+\Z")]
    """Sent to the program that answers there, so that I can tell your dial from that of a stranger."""


class KickPeer(Struct, frozen=True, tag=True):
    """Put this peer out. First and only message of a connection that may operate; answered with `PeerKicked`."""

    peer: Annotated[str, Meta(min_length=1, max_length=64)]
    """Its id, its name, or how its id begins."""
    reason: Annotated[str, Meta(max_length=512)] = ""
    """What it and the others are told; a person writes one or two sentences."""


class PeerKicked(Struct, frozen=True, tag=True):
    """It is out."""

    peer: Id
    name: PeerName


class Probed(Struct, frozen=True, tag=True):
    """What came of the dial."""

    host: Annotated[str, Meta(max_length=255)]
    """Which address was dialled."""
    cause: Text
    """Why it failed; empty if it came through."""
    seconds: float


ToObserver = Status | Probed | PeerKicked | Kick
