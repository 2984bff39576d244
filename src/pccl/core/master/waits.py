"""What the run waits for, in words: for the operator and for the peers that wait.

Reads the parts of the master and changes none of them. A wait is explained once it has lasted a while, again when its
words change, and again when it has lasted much longer, with its age and what limits it; and so is its end. Rules:
docs/protocol.md, "Words for waits".
"""

from collections.abc import Sequence

from msgspec import structs

from pccl.core.effects.both import Note
from pccl.core.limits import MasterLimits
from pccl.core.master.collective import Collective
from pccl.core.master.outbox import Outbox
from pccl.core.master.part import Part, Wait
from pccl.core.messages.to_peer import Awaited, Waiting
from pccl.core.reminders import times_again
from pccl.core.text import NAMES_MAX, clip
from pccl.types import PeerId, short


class Waits:
    """The sentences sent so far."""

    def __init__(self, parts: Sequence[Part], outbox: Outbox, limits: MasterLimits) -> None:
        self._parts = parts
        self.outbox = outbox
        self._limits = limits
        self._noted: dict[str, int] = {}
        """Sentences that the operator has read, and how often again."""
        self._calls: dict[tuple[str, float], Wait] = {}
        """The calls of waits that were told, and since when they last."""
        self._sent: dict[PeerId, tuple[str, int]] = {}
        """The same for each peer that waits."""
        self.look_at: float | None = None
        """When it is next looked at who waits, and for whom; None when no peer waits."""

    def look(self, now: float, interval_s: float) -> None:
        """Look again in a while if a peer waits; explain waits that have lasted long."""
        if self.due(now):
            self.look_at = None
            self.send(now)
        if self.look_at is None and any(part.waits() or any(part.waited_for()) for part in self._parts):
            self.look_at = now + min(interval_s, self._limits.explain_after_s)

    def due(self, now: float) -> bool:
        """It is time to look."""
        return self.look_at is not None and self.look_at <= now

    def waited_for(self) -> dict[PeerId, None]:
        """The peers whose next message others wait for."""
        return dict.fromkeys(peer for part in self._parts for peer in part.waited_for())

    def all(self) -> list[Wait]:
        """Every wait there is."""
        return [wait for part in self._parts for wait in part.waits()]

    def missing_in(self, collective: Collective) -> str:
        """Which peers have not called this collective, and what each of them waits in instead."""
        missing = collective.ballot.missing()
        if not missing:
            return f"{collective.explain()}, which all peers of the group have called"
        named = [
            f"{short(peer)} ({where})" if (where := self._where(peer)) else short(peer) for peer in missing[:NAMES_MAX]
        ]
        more = f" and {len(missing) - NAMES_MAX} more" if len(missing) > NAMES_MAX else ""
        return f"{collective.ballot.question} was not called by {', '.join(named)}{more}"

    def _where(self, peer: PeerId) -> str:
        """The calls in which a peer waits, in words; empty if there is none."""
        calls = [wait.call for wait in self.all() if peer in wait.waiting]
        return f"it waits in {', '.join(calls[:NAMES_MAX])}" if calls else ""

    def send(self, now: float) -> None:
        """Send the operator and the peers the sentences of long waits whose words have changed, or that have become
        much longer; and which are over."""
        waits = [wait for wait in self.all() if now - wait.since >= self._limits.explain_after_s]
        noted = {wait.sentence: times_again(now - wait.since) for wait in waits}
        for wait in waits:
            if noted[wait.sentence] != self._noted.get(wait.sentence):
                seconds, missing = now - wait.since, wait.missing[:NAMES_MAX]
                self._note(Note(self._aged(wait, now), "waits", True, "", seconds, missing), wait)
        calls = {(wait.call, wait.since): wait for wait in waits if wait.call}
        for (call, _), wait in [each for each in self._calls.items() if each[0] not in calls]:
            self._note(Note(f"{call}: the wait is over", "wait over"), wait)
        self._noted, self._calls = noted, calls
        self._send_waiting(waits, now)
        self._send_awaited(now)

    def _note(self, note: Note, wait: Wait) -> None:
        """In which no member waits or is waited for: a few lines in a while, as any number of outsiders can wait."""
        inside = wait.missing or not wait.waiting or any(map(self.outbox.is_accepted, wait.waiting))
        self.outbox.note_outsider(note, "" if inside else "those that wait outside")

    def _aged(self, wait: Wait, now: float) -> str:
        """Its sentence; if it is sent again, with its age and its bound."""
        if not times_again(now - wait.since):
            return wait.sentence
        bound = f"no limit while they answer, {self._limits.silence_s:g} s if not"
        if wait.until is not None:
            bound = f"for {wait.until - now:.0f} s more at most"
        return f"{wait.sentence}; for {now - wait.since:.0f} s now ({bound})"

    def _send_waiting(self, waits: list[Wait], now: float) -> None:
        present: dict[PeerId, Wait] = {}
        for wait in waits:
            for peer in wait.waiting:
                outside = wait.outside and not self.outbox.is_accepted(peer)
                present.setdefault(peer, structs.replace(wait, sentence=wait.outside) if outside else wait)
        state = {peer: (wait.sentence, times_again(now - wait.since)) for peer, wait in present.items()}
        changed: dict[str, list[PeerId]] = {}
        for peer, wait in present.items():
            if state[peer] != self._sent.get(peer):
                changed.setdefault(self._aged(wait, now), []).append(peer)
        for sentence, peers in changed.items():
            self.outbox.send(peers, Waiting(clip(sentence)))
        self._sent = state

    def _send_awaited(self, now: float) -> None:
        """To the peers whose calls are waited for, again and again, also about short waits: they compute, and can
        decide to be brief. What they know is about the moment, and gone with the next call or roster."""
        waits = sorted((wait for wait in self.all() if wait.call), key=lambda each: -each.since)
        oldest = {peer: wait for wait in waits for peer in wait.missing if peer not in wait.waiting}
        for peer, wait in oldest.items():
            self.outbox.send((peer,), Awaited(clip(wait.call), int(1000 * (now - wait.since))))
