"""The first frame of a lane, and its answer."""

from typing import Annotated

from msgspec import Meta, Struct

from pccl.core.fields import Id, Lane, Number, Run

Proof = Annotated[bytes, Meta(max_length=256)]
"""Opaque here; empty in a run without security."""


class LaneHello(Struct, frozen=True, tag=True):
    """First frame of a lane, from the end that dialled."""

    run: Run
    sender: Id
    receiver: Id
    """Whom I mean to reach: behind NAT or a reused port another one may answer."""
    link: Number
    lane: Lane
    proof: Proof = b""
    """That I know the key of the link; made and checked outside the core."""


class LaneAnswer(Struct, frozen=True, tag=True):
    """The receiver's answer; after an accepted one the lane belongs to the data plane."""

    accepted: bool
    reason: Annotated[str, Meta(max_length=512)] = ""
    """Short, so that the answer fits the frame that a dialler accepts from a stranger."""
    proof: Proof = b""
    """That I know it, too."""


Between = LaneHello | LaneAnswer
