"""What both ends of a control connection send."""

from msgspec import Struct


class Ping(Struct, frozen=True, tag=True):
    """Are you there? Sent while a peer waits for the receiver, to visitors, and after refusals."""


class Pong(Struct, frozen=True, tag=True):
    """I am here."""
