"""What a connection may do: the driver says so with each message, from what its sender has proved.

Owns the rights and what is granted where nothing can be proved, and what counts as one address where places and lines
are bounded by address. Does not know tokens or certificates.

Rules: docs/protocol.md, "Rights".
"""

from enum import Flag
from functools import lru_cache
from ipaddress import ip_network


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
    return Rights.ALL if is_local(host) else Rights.ALL & ~Rights.OPERATE


def is_local(host: str) -> bool:
    """This is an address of the machine itself."""
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


@lru_cache(maxsize=1024)  # In a flood most are of a few.
def origin_of(host: str) -> str:
    """What counts as one address: one of IPv4, or of IPv6 a network of 64 bits, the least that a provider gives to one
    customer."""
    return str(ip_network((host.partition("%")[0], 64), strict=False)) if ":" in host else host
