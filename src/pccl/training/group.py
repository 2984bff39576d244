"""A run's place among its peers: joining, reductions with the rows of all, admission, and the way back after a kick.

Owns the Communicator. Every answer that it passes on is the same on all peers of the group, so what is decided from
them is decided alike. Must not know parameters, rounds or schedules.
"""

import contextlib
import logging
import threading
import time
from typing import NamedTuple

import torch

from pccl import (
    Communicator,
    ErrorFeedback,
    MembershipLost,
    PCCLError,
    PeerId,
    ReduceInfo,
    Refused,
    SharedState,
    SharedStateSyncInfo,
    SyncFailed,
    TooFewPeers,
    UsageError,
    Work,
)
from pccl.training.equals import of_equals
from pccl.training.rows import Row, Table
from pccl.types import count_peers, short

log = logging.getLogger("pccl.training")

CONNECT_ATTEMPTS = 60
"""A second each: as long as a master may take to start, or to come back on another machine."""

RETURNS_MAX = 3
"""In a row without a round in between. A peer that is put out more often has a cause that a person must hear of."""

ROLL_CALL = 10**9
"""The tag of the call in which all tell who they are: above those of fragments. It must depend on no setting, for peers
whose settings differ meet in it."""

POLL_S = 0.25
"""How often peers that are too few ask whether a candidate has come, and so does one that is alone."""

TOLD_EVERY_S = 10.0
"""How often they say for whom they wait."""


Since = tuple[int, int, float]
"""How much a peer had made up to a moment: steps that count, tokens, and seconds of computing."""

NOTHING: Since = (0, 0, 0.0)


class TimeIsOver(MembershipLost):
    """SIGTERM came, the round has not ended in time, and the run was left. Remedy: none; end the process."""


class Landed(NamedTuple):
    """A reduction that is over, and what all peers know of it."""

    table: Table
    pending: bool
    """Candidates wait to be admitted."""
    alone: bool
    """No other peer took part; whether candidates wait is not known."""
    info: ReduceInfo


class Flight:
    """A reduction that is under way."""

    def __init__(
        self,
        fragment: int,
        delta: torch.Tensor,
        packed: torch.Tensor,
        work: Work | None,
        feedback: ErrorFeedback | None = None,
    ) -> None:
        self.fragment = fragment
        self.delta = delta
        """Holds the own delta until it has landed, then the sum of all."""
        self.due = 0
        """The step after which it is merged."""
        self.round, self.last = 0, False
        """The round that it belongs to, counted from 1, and whether it is the last of that."""
        self.since = NOTHING
        """Before what it carries."""
        self._packed = packed
        self._work = work
        self._feedback = feedback

    def land(self, me: PeerId) -> Landed:
        """Wait for its end. Without other peers the own delta is the sum."""
        if self._work is not None:
            try:
                return _landed(self._work.wait())
            except TooFewPeers:
                self._work = None
        return _landed(ReduceInfo(1, 0, 0, (me,), gathered=(self._packed,)), alone=True)

    def drop(self) -> None:
        """Wait until its memory is free, whatever comes of it. What it carried goes with what is reduced instead."""
        with contextlib.suppress(PCCLError):
            if self._work is not None:
                self._work.wait()
                if self._feedback is not None:
                    self._feedback.take_back(self.fragment)


def _landed(info: ReduceInfo, alone: bool = False) -> Landed:
    rows = [Row.unpack(each) for each in info.gathered]
    table = Table(info.peers, tuple(row for row, _ in rows), tuple(extra for _, extra in rows))
    return Landed(table, info.pending, alone, info)


class Group:
    """This peer and the others."""

    def __init__(self, place: str | Communicator, codec: str | ErrorFeedback | None) -> None:
        self._address = place if isinstance(place, str) else None
        self._given = None if isinstance(place, str) else place
        self._communicator: Communicator | None = None
        self._codec = codec
        self.returns = 0
        """How often it came back or began again since a round was last finished."""
        self._asked_at = 0.0

    @property
    def communicator(self) -> Communicator:
        if self._communicator is None:
            raise UsageError("training: this run is not joined; enter it with `with`")
        return self._communicator

    @property
    def joined(self) -> bool:
        """This peer is in a run, or was until it was put out."""
        return self._communicator is not None

    @property
    def me(self) -> PeerId:
        """This peer's id."""
        return self.communicator.peer_id

    def name_of(self, peer: PeerId) -> str:
        """`name (id8)`, for sentences."""
        return short(peer) if self._communicator is None else self._communicator.name_of(peer)

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, state: SharedState) -> None:
        """Be admitted, with as much of the state as can be had before that."""
        if self._given is not None:
            self._communicator = self._given
            with contextlib.suppress(UsageError):
                assert self._given.peer_id, "it is connected"
                return
            self._given.connect()
            return
        joining = self._make()
        self._prefetch(joining, state)
        joining.connect(CONNECT_ATTEMPTS)
        self._communicator = joining

    def _make(self) -> Communicator:
        assert self._address is not None, "an address or a Communicator"
        return Communicator(self._address, sigterm=False)

    def _prefetch(self, joining: Communicator, state: SharedState) -> None:
        with contextlib.suppress(SyncFailed):  # Its holders are gone; the sync brings what is missing.
            joining.prefetch_shared_state(state, CONNECT_ATTEMPTS)

    def come_back(self, lost: MembershipLost, state: SharedState) -> None:
        """Join again in this process, if there is an address to join by; otherwise raise what happened."""
        self.returns += 1
        if self._address is None or isinstance(lost, Refused) or self.returns > RETURNS_MAX:
            raise lost
        log.warning("out of the run: %s. Joining again (%d of %d)", lost, self.returns, RETURNS_MAX)
        self.leave()
        self.join(state)

    def begin_again(self, failed: SyncFailed) -> None:
        """After a sync that did not bring all peers into step, unless that happens again and again."""
        self.returns += 1
        if self.returns > RETURNS_MAX:
            raise failed
        log.warning("%s. The peers that are left agree again (%d of %d)", failed, self.returns, RETURNS_MAX)

    def leave(self) -> None:
        """Say goodbye, if this peer is in a run."""
        if self._communicator is not None:
            self._communicator.close()
            self._communicator = None

    def give_up(self) -> None:
        """Leave while calls are under way: the time after SIGTERM is over. In a thread of its own."""
        self.leave()

    def end(self) -> None:
        """Leave, for this peer's part in the run is over."""
        self.leave()

    # ── what all peers do together ───────────────────────────────────────────────────────────────────────────────────

    def together(self, row: Row) -> Row:
        """What this peer tells, where others of its party have a part in it: of all of them."""
        return row

    def norm_of(self, norm: float) -> float:
        """Of a delta of which other peers of this party have parts: of all of it."""
        return norm

    def agreed(self, flag: bool) -> bool:
        """Whether it is so at any peer of this party."""
        return flag

    def choose(self, state: SharedState, table: Table) -> None:
        """Before the first sync of a run, with the rows of all: what is elected is the group's to find out."""

    def sync(self, state: SharedState) -> SharedStateSyncInfo:
        """Hold what the group holds."""
        return self.communicator.sync_shared_state(state)

    def admit(self) -> None:
        """Let candidates in."""
        self.communicator.update_topology()

    def launch(self, fragment: int, delta: torch.Tensor, packed: torch.Tensor) -> Flight:
        """Begin to reduce a delta, and with it to gather the rows."""
        try:
            work = self.communicator.all_reduce_many(
                [delta], tag=fragment, quantize=self._codec, gather=packed, retry=True, async_op=True
            )
        except TooFewPeers:
            return Flight(fragment, delta, packed, None)
        feedback = self._codec if isinstance(self._codec, ErrorFeedback) else None
        return Flight(fragment, delta, packed, work, feedback)

    def roll_call(self, packed: torch.Tensor, least: int) -> Landed:
        """The rows of all with their settings behind them, without a reduction: after it all know which peers are here.
        Those whose settings differ are refused, as soon as so many are here."""
        landed = self._rows_of_all(packed)
        return landed._replace(table=of_equals(landed.table, self.me, least, self.name_of))

    def _rows_of_all(self, packed: torch.Tensor) -> Landed:
        try:
            shares = self.communicator.all_gather(packed, tag=ROLL_CALL, retry=True)
        except TooFewPeers:
            return _landed(ReduceInfo(1, 0, 0, (self.me,), gathered=(packed,)), alone=True)
        return _landed(shares.info._replace(gathered=tuple(shares.output)))

    def awaited_s(self) -> float:
        """How long others have waited for this peer; 0 if they do not."""
        with contextlib.suppress(UsageError):  # It has left meanwhile: its time is over.
            awaited = self.communicator.awaited
            return 0.0 if awaited is None else awaited.seconds
        return 0.0

    def candidates_wait(self) -> bool:
        """Asked by a peer alone: not more often than candidates are worth waiting for."""
        if time.monotonic() - self._asked_at < POLL_S:
            return False
        self._asked_at = time.monotonic()
        return self.communicator.are_peers_pending()

    def await_candidates(self, here: int, wanted: int) -> None:
        """Until a candidate waits; all peers ask together."""
        told = 0.0
        pause = threading.Event()
        while not self.communicator.are_peers_pending():
            if told <= 0.0:
                names = ", ".join(map(self.name_of, self.communicator.ring))
                log.warning(
                    "rounds wait for more peers: min_peers is %d, and %s here (%s). Start more, or lower min_peers",
                    wanted,
                    f"{count_peers(here)} {'is' if here == 1 else 'are'}",
                    names,
                )
                told = TOLD_EVERY_S
            pause.wait(POLL_S)
            told -= POLL_S
