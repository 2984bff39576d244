"""The people who train: scripts of calls, written as the loops that PCCL documents.

All people of a run follow the same script. They keep in step because every answer is the same for everybody whom it
concerns: a newcomer starts with the collectives, which is what the others do after they have let it in; whoever gets
"aborted" tries that tag again while its group has others; nobody looks at anything else.
"""

import hashlib
from collections.abc import Callable, Generator
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from pccl.core.effects.peer_effects import Answer, Failure, FailureKind, InSync
from pccl.core.effects.peer_events import (
    ArePeersPending,
    CallCollective,
    FetchShared,
    Request,
    SayGoodbye,
    SyncShared,
    UpdateTopology,
    WaitAccepted,
)
from pccl.core.fields import CollectiveSpec
from pccl.types import DataType, ReduceOp, SharedStateSyncStrategy
from tests.simulation import machines, transfer
from tests.simulation.plan import Plan, Style
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost

LONG_THOUGHT_S = 100.0
"""A trainer may compute for longer than every limit of the protocol."""

_STAYS = (FailureKind.ABORTED, FailureKind.TOO_FEW_PEERS, FailureKind.MISMATCH, FailureKind.SYNC_FAILED)
"""Failures after which a person goes on; all others end its membership."""


LAYOUT = bytes(16)
"""Everybody's."""

TIME_S = (0.0, 0.1, 1.0, 5.0)
"""What a call of a collective has at most until it must have started, where it has so little."""

AGAIN_S = 0.5
"""An interrupted fetch of a visitor is in the way of the next one; that is tried this often."""

WITHDRAWN_S = 0.05
"""An interrupted call returns when nothing works on its state any more; that is looked for this often."""


class Think(Struct, frozen=True):
    """Compute for a while."""

    seconds: float


class Ask(Struct, frozen=True):
    """Make these calls side by side and wait for all answers."""

    requests: tuple[Request, ...]


class Out(Exception):
    """The membership is over."""


class OutOfStep(Exception):
    """Somebody did something else than the others."""


Script = Generator[Think | Ask, tuple[Answer, ...], None]


class Person:
    """One person at one peer."""

    def __init__(self, host: "PeerHost", script: Callable[["Person"], Script]) -> None:
        self.host = host
        self.theatre = host.theatre
        self.steps = 0
        """Rounds of the loop that it has completed."""
        self.leaving = False
        self._script = script(self)
        self._open: dict[int, float] = {}
        self._asked: dict[int, Answer] = {}
        """Calls of the present wish in its order, and their answers."""
        self._unanswered: set[int] = set()
        self._made: dict[int, tuple[int, Request]] = {}
        """Calls that somebody waits for; those that were made again, in whose place."""
        self._insists: set[int] = set()
        """Those of a wish that were interrupted and are made again."""
        self._timed_out: set[int] = set()
        """Those that timed out and are made again."""
        self._thinks = False
        self._dice = Random(host.identity.peer)
        """For what was added later, so that seeds without it stay the runs that they were."""

    def start(self) -> None:
        """Begin."""
        self._go_on(())

    def waiting_s(self) -> float:
        """How long the oldest open call has waited."""
        return self.theatre.scheduler.now - min(self._open.values(), default=self.theatre.scheduler.now)

    def answered(self, call: int, answer: Answer) -> None:
        """A call was answered; the script goes on a moment later, as a thread that wakes up."""
        self._open.pop(call, None)
        if call not in self._made:
            return  # Nobody waits for it: a goodbye, or it was interrupted.
        asked, request = self._made.pop(call)
        if asked in self._insists and isinstance(answer, Failure) and answer.kind is FailureKind.USAGE:
            if not isinstance(request, FetchShared):
                raise Violation(
                    "made again", f"{self.host.name} may not call again after an interrupt: {answer.reason}"
                )
            self.theatre.scheduler.after(AGAIN_S, self.host.post, self._make, asked, request)
            return
        if isinstance(answer, Failure) and answer.kind is FailureKind.TIMED_OUT:
            # At once, whatever else it waits for: others may wait for this one in theirs.
            self._timed_out.add(asked)
            self.theatre.scheduler.after(0.0, self.host.post, self._make, asked, request)
            return
        self._unanswered.discard(asked)
        self._asked[asked] = answer
        if not self._unanswered:
            answers = tuple(self._asked.values())
            self._asked = {}
            self.theatre.scheduler.after(0.0, self.host.post, self._go_on, answers)

    def interrupt(self) -> bool:
        """Press Ctrl-C in a call, and make it again; False if there is none that waits by itself. Collectives are not
        interrupted: they go on, and whoever launched them waits for them once more."""
        waiting = [call for call, (_, request) in self._made.items() if not isinstance(request, CallCollective)]
        if waiting and not self.leaving:
            self.host.post(self._interrupt, waiting[0])
        return bool(waiting)

    def _interrupt(self, call: int) -> None:
        if call in self._made and not self.leaving:
            asked, request = self._made.pop(call)
            self._insists.add(asked)
            self.host.abandon(call)
            self._make_again(asked, request)

    def _make_again(self, asked: int, request: Request) -> None:
        """At once, or when the state is ours again; then as it is by now."""
        host = self.host
        if isinstance(request, SyncShared):
            if transfer.works_on_state(host):
                self.theatre.scheduler.after(WITHDRAWN_S, host.post, self._make_again, asked, request)
                return
            strategy = SharedStateSyncStrategy.RECEIVE_ONLY if host.torn else request.strategy
            request = SyncShared(host.revision, strategy, LAYOUT, host.word)
        self._make(asked, request)

    def leave(self) -> None:
        """Say goodbye now, whatever else is going on."""
        if not self.leaving:
            self.leaving = True
            for mate in machines.mates(self.host):
                list.append(mate.harms, "one of its party says goodbye")
            self._script.close()
            self._stop_thinking()
            self.host.post(self._leave)

    def _leave(self) -> None:
        call = self.host.next_number()
        self._open[call] = self.theatre.scheduler.now
        self.host.call(call, SayGoodbye())
        self.theatre.scheduler.after(0.0, self._exit_when_answered)

    def _exit_when_answered(self) -> None:
        if self._open and not self.host.gone:
            self.theatre.scheduler.after(0.25, self._exit_when_answered)
        else:
            self.host.post(self.host.exit)

    def _go_on(self, answers: tuple[Answer, ...]) -> None:
        if self.leaving:
            return
        self._stop_thinking()
        try:
            wish = self._script.send(answers) if answers else next(self._script)
        except (StopIteration, Out):
            self.leave()
            return
        if isinstance(wish, Think):
            self._thinks = True
            self.theatre.thinkers(+1)
            self.theatre.scheduler.after(wish.seconds, self.host.post, self._go_on, ())
        else:
            self._asked = dict.fromkeys((self.host.next_number() for _ in wish.requests), None)
            self._unanswered, self._insists, self._timed_out = set(self._asked), set(), set()
            for call, request in zip(self._asked, wish.requests, strict=True):
                delay_s = self.theatre.random.uniform(0.0, 0.01)
                self.theatre.scheduler.after(delay_s, self.host.post, self._make, call, request)
            together = [
                call for call, each in zip(self._asked, wish.requests, strict=True) if isinstance(each, CallCollective)
            ]
            if len(together) > 1 and self._hurries():
                self.theatre.scheduler.after(0.01 + self._time_s(), self.host.post, self.host.expire, *together)

    def _make(self, asked: int, request: Request) -> None:
        if not self.leaving:
            call = self.host.next_number() if asked in self._insists | self._timed_out else asked
            request = self._renewed(request)
            self._made[call] = asked, request
            self._open[call] = self.theatre.scheduler.now
            if isinstance(request, CallCollective) and self._hurries():
                self.theatre.scheduler.after(self._time_s(), self.host.post, self.host.expire, call)
            self.host.call(call, request)

    def _time_s(self) -> float:
        return self._dice.choice(TIME_S) * self._dice.random()

    def _hurries(self) -> bool:
        return self.theatre.acting and self._dice.random() < self.theatre.plan.timeouts

    def _renewed(self, request: Request) -> Request:
        """A call reads the state when it is made. An interrupted one may have written to it: that is a mixture."""
        if not isinstance(request, SyncShared) or request.content == self.host.word:
            return request
        self.host.torn = True
        return structs.replace(request, content=self.host.word, torn=True)

    def _stop_thinking(self) -> None:
        if self._thinks:
            self._thinks = False
            self.theatre.thinkers(-1)

    gone = _stop_thinking
    """The process has ended, and with it the thought."""


# ── scripts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Answers = Generator[Think | Ask, tuple[Answer, ...], tuple[Answer, ...]]


def train(person: Person) -> Script:
    """Connect, then step after step. Whoever hears that the calls did not fit goes where everybody meets again."""
    yield from _ask(WaitAccepted())
    while True:
        try:
            if person.theatre.plan.syncs:
                yield from _sync(person)
            pending = yield from _collectives(person)
            _learn(person)
            yield from _think(person)
            yield from _renew(person, pending)
        except OutOfStep:
            yield from _meet()
        person.steps += 1
        yield from _think(person)


def visit(person: Person) -> Script:
    """Fetch what the others hold while they train on, and go."""
    yield from _ask(FetchShared(LAYOUT))
    if _strays(person):
        yield from _ask(FetchShared(LAYOUT))


def _ask(*requests: Request) -> Answers:
    answers = yield Ask(requests)
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    if any(failure.kind not in _STAYS for failure in failures):
        raise Out
    for failure in failures:
        if failure.kind is FailureKind.MISMATCH:
            raise OutOfStep(failure.reason)
    return answers


def _meet() -> Script:
    while True:
        try:
            yield from _ask(UpdateTopology())
            return
        except OutOfStep:
            continue


def _think(person: Person) -> Script:
    random, plan = person.theatre.random, person.theatre.plan
    if random.random() < plan.long_thought and person.theatre.acting:
        yield Think(random.uniform(0.0, LONG_THOUGHT_S))
    elif random.random() < 0.7:
        yield Think(random.uniform(0.05, plan.think_s))


def _collectives(person: Person) -> Generator[Think | Ask, tuple[Answer, ...], bool]:
    """Reduce all tags, again and again until each is committed or nobody else is there; True if somebody waits."""
    pending, plan = False, person.theatre.plan
    requests: list[Request] = [CallCollective(tag, spec_of(tag, plan)) for tag in range(plan.tags)]
    if plan.style is Style.OVERLAP:
        requests.append(ArePeersPending())
    requests = yield from _stray(person, requests)
    while requests:
        person.theatre.random.shuffle(requests)
        answers = yield from _ask(*requests)
        pending = pending or any(answer is True for answer in answers)
        requests = [request for request, answer in zip(requests, answers, strict=True) if _aborted(answer)]
        if len(person.host.core.ring) < 2:
            break
    return pending


def _sync(person: Person) -> Script:
    """Hold what the others hold, again and again until that is so."""
    host, random = person.host, person.theatre.random
    if host.revision == 0 and random.random() < person.theatre.plan.checkpoints:
        host.revision = random.randrange(1, 30)
        host.word, host.torn = b"checkpoint %5d" % host.revision, False
    while True:
        shy = not host.torn and host.revision == 0 and len(host.core.ring) > 1 and _strays(person)
        strategy = SharedStateSyncStrategy.RECEIVE_ONLY if shy else SharedStateSyncStrategy.ENFORCE_POPULAR
        try:
            (answer,) = yield from _ask(SyncShared(host.revision, strategy, LAYOUT, host.word, host.torn))
        except OutOfStep as error:
            if not (host.torn and "no peer offers" in str(error)):
                raise
            # Nobody is left who has a whole one. Whoever reads that begins anew, and is still in step.
            host.word, host.torn = b"anew %11d" % host.revision, False
            continue
        if isinstance(answer, InSync):
            host.revision, host.torn = answer.revision, False
            return
        if isinstance(answer, Failure) and answer.revision is not None:
            # Others lack it, so they may have it of us the next time.
            host.revision, host.torn = answer.revision, False


def _learn(person: Person) -> None:
    """An optimizer step, which gives everybody the same, or should."""
    host, random = person.host, person.theatre.random
    host.revision += 1
    if random.random() < person.theatre.plan.divergence and person.theatre.acting:
        host.word = random.randbytes(16)
    else:
        host.word = hashlib.blake2b(host.word, digest_size=16).digest()


def _renew(person: Person, pending: bool) -> Script:
    """Let in who waits, in the style of the run."""
    style = person.theatre.plan.style
    if style is Style.UPDATE and _strays(person):
        yield from _ask(ArePeersPending())
    if style is Style.ASK_FIRST:
        (answer,) = yield from _ask(ArePeersPending())
        pending = answer is True
    if pending or style is Style.UPDATE:
        yield from _ask(UpdateTopology())


def _aborted(answer: Answer) -> bool:
    return isinstance(answer, Failure) and answer.kind is FailureKind.ABORTED


def spec_of(tag: int, plan: Plan) -> CollectiveSpec:
    """What everybody asks for under this tag."""
    # Every other one is short enough to travel with the votes. The others take from a part of one lane's share to
    # several shares: some get one lane, some all that are free. Of more than one thread only much longer ones have use.
    least = 50_000 if plan.threads == 1 else 5_000_000
    return CollectiveSpec(100 if tag % 2 == plan.short_tags else least << tag % 4, DataType.FLOAT, ReduceOp.SUM)


def _strays(person: Person) -> bool:
    return person.theatre.acting and person.theatre.random.random() < person.theatre.plan.strays


def _stray(person: Person, requests: list[Request]) -> Generator[Think | Ask, tuple[Answer, ...], list[Request]]:
    """Rarely, in runs of that kind, do what can never complete together with what the others do.

    Not every difference is one: a peer that calls another tag may yet call the missing one from another thread, so
    the master can only explain such a wait, not end it."""
    if not _strays(person):
        return requests
    if person.theatre.random.random() < 0.5:
        yield from _ask(UpdateTopology())
        return requests
    other_parameters = CollectiveSpec(7, DataType.DOUBLE, ReduceOp.MAX)
    return [
        CallCollective(each.tag, other_parameters) if isinstance(each, CallCollective) else each for each in requests
    ]
