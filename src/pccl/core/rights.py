"""What a connection may do: the driver says so with each message, from what its sender has proved.

Owns the rights and what is granted where nothing can be proved. Does not know tokens or certificates.

Rules: docs/protocol.md, "Rights".
"""

from enum import Flag


class Rights(Flag):
    """Of one connection."""

    NONE = 0
    JOIN = 1
    """To be a candidate, a visitor or a member that comes back."""
    OBSERVE = 2
    """To ask for the status, and to be dialled back."""
    OPERATE = 4
    """To put peers out."""
    BRING_STATE = 8
    """To bring a shared state from another history into a run that has agreed on one."""
    ALL = 15


def without_secret(host: str) -> Rights:
    """What a connection from this address may do where no secret says who is who: all that its protocol has, but only
    the machine of the master operates."""
    local = host.startswith(("127.", "::ffff:127.")) or host == "::1"
    return Rights.ALL if local else Rights.ALL & ~Rights.OPERATE
