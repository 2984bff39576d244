"""Whether peers that meet train by the same settings: those that do not are refused in the roll call, before they make
another call than the others, for which these would wait for ever.

Owns how settings travel beside a row there, and who is refused; all peers see the same rows, so all decide alike. Must
not know what the settings mean.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec
import torch

from pccl import PeerId, UsageError
from pccl.training.rows import Table

log = logging.getLogger("pccl.training")

ROOM = 4096
"""Bytes of all settings in words, which are about 600: as long at all peers, whatever they are set to."""

Settings = dict[str, str]
"""By name, in words."""


def packed(settings: Settings) -> torch.Tensor:
    """As they travel behind a row."""
    words = msgspec.msgpack.encode(settings)
    if len(words) > ROOM:
        raise UsageError(f"training: all settings in words must take {ROOM} bytes at most, got {len(words)}")
    return torch.frombuffer(bytearray(words.ljust(ROOM, b"\0")), dtype=torch.float64)


def unpacked(extra: torch.Tensor) -> Settings:
    """The way back."""
    words = extra.contiguous().numpy().tobytes().rstrip(b"\0")
    return msgspec.msgpack.decode(words, type=Settings) if words else {}


def of_equals(table: Table, me: PeerId, least: int, name_of: Callable[[PeerId], str]) -> Table:
    """The rows of those whose settings are as here. Raises `UsageError` at a peer whose settings are not those of the
    run. Before that begins, with `least` peers, it is open which are right, and each kind waits for more of it."""
    own = table.peers.index(me)
    told = [each.contiguous().numpy().tobytes() for each in table.extras]
    in_run = [words for words, row in zip(told, table.rows, strict=True) if row.synced]
    decided = bool(in_run) or len(told) >= least
    right = told.index(_most(in_run or told)) if decided else own
    if told[own] != told[right]:
        here, there = _apart(table.extras[own], table.extras[right])
        raise UsageError(
            f"training: the settings of all peers must be equal, got {here} here and {there} at "
            f"{name_of(table.peers[right])}; start this peer with those of the others"
        )
    for peer, words, extra in zip(table.peers, told, table.extras, strict=True):
        if words != told[own]:
            here, there = _apart(table.extras[own], extra)
            what = "is refused" if decided else "or this peer will be refused, when enough are here"
            log.warning("%s %s: it has %s, and here is %s", name_of(peer), what, there, here)
    equal = [place for place, words in enumerate(told) if words == told[own]]
    return Table(
        tuple(table.peers[each] for each in equal),
        tuple(table.rows[each] for each in equal),
        tuple(table.extras[each] for each in equal),
    )


def _most(told: Sequence[bytes]) -> bytes:
    """Those of most peers."""
    return max(told, key=lambda each: (told.count(each), each))


def _apart(one: torch.Tensor, other: torch.Tensor) -> tuple[str, str]:
    """What differs, as either has it."""
    both = unpacked(one), unpacked(other)
    names = [name for name in {**both[0], **both[1]} if both[0].get(name) != both[1].get(name)]
    here, there = (", ".join(f"{name}={each.get(name, 'none')}" for name in names) for each in both)
    return here, there
