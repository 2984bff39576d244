"""Sentences for people: short names, lists of them, texts that any message can carry; and the error of a
message that breaks the protocol.

Knows nothing of what the sentences are about, but for those that both sides have in common.
"""

from collections.abc import Iterable

from pccl.types import PeerId, short

TEXT_MAX = 4096
"""The longest text a message may carry (`messages.Text`); longer ones are cut: the sentence still helps."""


def clip(text: str) -> str:
    """A text that any message can carry and any terminal can show: short, encodable, printable."""
    text = "".join(
        letter if letter.isprintable() else "?" for letter in text.encode("utf-8", "replace").decode("utf-8")
    )
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


ALONE = "this group has no other accepted peer; admit one with update_topology"
"""Why a collective cannot begin: the same to a peer that knows it and to one that the master tells."""

NAMES_MAX = 8
"""Peers named in one sentence; a person reads eight names, and a thousand would not fit a message."""


def names(peers: Iterable[PeerId]) -> str:
    """A few short names, and how many more there are."""
    listed = list(peers)
    text = ", ".join(short(peer) for peer in listed[:NAMES_MAX])
    return f"{text} and {len(listed) - NAMES_MAX} more" if len(listed) > NAMES_MAX else text


class Violation(Exception):
    """The sender broke a rule; the text is what it and the operator read. The master kicks, a peer leaves."""
