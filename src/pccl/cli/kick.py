"""`pccl kick`: put a peer out."""

import asyncio
import sys
from typing import TextIO

from pccl.cli.ask import TIMEOUT_S, find_entrance, in_words
from pccl.cli.exits import Exit
from pccl.core.messages.observers import KickPeer, PeerKicked
from pccl.core.names import shown
from pccl.credentials import NOT_PASSED, CertificateSettings
from pccl.errors import UsageError
from pccl.net.observing import Unreachable, ask

PEER_MAX, REASON_MAX = 64, 512
"""What the message can carry."""


def kick(
    peer: str,
    reason: str,
    address: str | None,
    out: TextIO,
    certificates: CertificateSettings = NOT_PASSED,
) -> int:
    """Ask the master to put this peer out, and print which one it was."""
    if not 0 < len(peer) <= PEER_MAX:
        # Not what it is: an address with a token may have taken its place.
        raise UsageError(
            f"PEER must be a name or the beginning of an id, of up to {PEER_MAX} characters, got {len(peer)}; "
            "the master's address comes behind it"
        )
    if len(reason) > REASON_MAX:
        raise UsageError(f"--reason must have up to {REASON_MAX} characters, got {len(reason)}")
    master = find_entrance(address, certificates)
    try:
        answer = asyncio.run(ask(master.address, KickPeer(peer, reason), TIMEOUT_S, master.make_guard))
        if not isinstance(answer, PeerKicked):
            raise Unreachable("protocol", f"it answered with {type(answer).__name__}")
    except Unreachable as error:
        refused = error.phase == "refused"
        print(f"pccl kick: {error if refused else in_words(master, error)}", file=sys.stderr)
        return Exit.USAGE if refused else Exit.UNREACHABLE
    named = f"{shown(answer.name)} ({answer.peer})" if answer.name else answer.peer
    print(f"{named} is out of the run", file=out)
    return Exit.DONE
