"""Peers that keep no rule: any valid message at any time with any numbers, lanes for anybody, links that flap.

A hostile peer may obey a core to be let in like others and interfere with it, or improvise from the first message on;
a core that gives up leaves a process behind that goes on improvising. The checkers of calls do not look at it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pccl.core.effects.peer_effects import (
    AcceptLane,
    CloseMaster,
    Dial,
    Failure,
    FailureKind,
    RefuseLane,
    Resolve,
    SendMaster,
)
from pccl.core.effects.peer_events import Call, FromMaster, LaneDialled, LaneOffered, PeerEvent, Request
from pccl.core.fields import Identity, LinkSpec
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.to_master import Done, Failed, Join, Leave, LinkDown, LinkUp, ToMaster, Withdraw
from pccl.core.messages.to_peer import Abort, Outcome, Start, ToPeer, Topology, Wire
from pccl.core.peer.peer import PeerStage
from pccl.wire.codec import encode
from pccl.wire.framing import frame
from tests.simulation import lanes
from tests.simulation.habits import MESSAGES, MESSAGES_OF_CONSPIRATORS, Habits, draw_habits, story
from tests.simulation.lanes import LaneEnd, LaneKey
from tests.simulation.master_host import RUN
from tests.simulation.network import Connection
from tests.simulation.peer_host import PeerHost
from tests.simulation.trace import tell

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre

HOSTILE_MAX = 10
"""How often hostile peers enter a run: each is put out sooner or later and comes back under another name."""
DIAL_TIMEOUT_S = 5.0
HOLD_S = 0.5
"""How long a peer that alternates lets a link stand, so that both ends have reported it."""
PAUSE_S = 1.0
"""Then it waits, so that the master hears of the end of one link before the next one stands."""


class HostileHost(PeerHost):
    """One hostile process."""

    hostile = True

    def __init__(
        self,
        theatre: "Theatre",
        identity: Identity,
        address: tuple[str, int],
        distance_s: float,
        habits: Habits | None = None,
    ) -> None:
        super().__init__(theatre, identity, address, distance_s)
        self.harms.append("hostile")
        self.random = theatre.random
        self.habits = habits or draw_habits(theatre.random)
        self.slowness_s = theatre.random.choice((0.0, 0.0, 0.3, 1.0))
        self._seen = [1]
        """Numbers in messages to it."""
        self._guess = 0
        self._planned = False
        self._stood_at: dict[LaneKey, float] = {}
        if theatre.conspiracy:
            self.habits = structs.replace(self.habits, obeys=False, alternates=False, kinds=(LinkDown, Withdraw, Leave))
        if self.habits.obeys and self.habits.trains:
            theatre.hire(self)

    def likely(self, probability: float) -> bool:
        """Throw the dice."""
        return self.random.random() < probability

    def number(self) -> int:
        """One that it has seen or one close to it, the next of a row of guesses, or anything."""
        kind = self.random.randrange(4)
        if kind < 2:
            self._guess = max(0, self.random.choice(self._seen[-8:]) + self.random.randint(-1, 2))
        else:
            self._guess = self._guess + 1 if kind == 2 else self.random.randrange(2 ** self.random.randint(1, 62))
        return self._guess

    # ── the master ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def improvises(self) -> bool:
        """No core tells it what to do."""
        return not self.habits.obeys or self.core.stage is PeerStage.GONE

    def connected(self, control: Connection | None) -> None:
        if control is None or self.habits.obeys:
            super().connected(control)
        else:
            self.attach(control)
            if self.theatre.conspiracy:
                for message in story(self):
                    self.say(message)
            elif self.habits.joins:
                self.say(Join(structs.replace(self.identity, secret="")))
        if not self._planned:
            self._planned = True
            self._plan()

    def say(self, message: ToMaster) -> None:
        """Send it, unseen by the checkers."""
        if self.control is not None:
            if self.theatre.trace.on:
                self.theatre.trace.line(self.scheduler.now, self.name, f"    → makes up {tell(message)}")
            self.control.send(0, frame(encode(message)))

    def call(self, number: int, request: Request) -> None:
        self.handle(Call(number, request))

    def handle(self, event: PeerEvent) -> None:
        if self.gone:
            return
        if isinstance(event, FromMaster):
            self._learn(event.message)
            if isinstance(event.message, Topology) and not self.theatre.acting:
                self.crash()
        if isinstance(event, LaneOffered):
            self._in_turn(event.hello.link, self._obey, event)
        else:
            self._obey(event)

    def _obey(self, event: PeerEvent) -> None:
        if self.improvises:
            self._improvise(event)
        else:
            super().handle(event)
        if isinstance(event, LaneDialled):
            self._stands((event.link, event.lane))

    def perform(self, effect: Any) -> None:
        match effect:
            case SendMaster(message):
                if self.likely(self.habits.answers) or isinstance(message, Join):
                    self.say(message)
            case Resolve(call, answer):
                if self.person is not None:
                    self.person.answered(call, answer)
            case CloseMaster() if self.habits.stays and self.improvises:
                pass  # A core that dials again has one connection at a time, like that of any peer.
            case Dial(hello):
                self._in_turn(hello.link, self._dial, effect)
            case AcceptLane():
                super().perform(effect)
                self._stands((effect.link, effect.lane))
            case _:
                super().perform(effect)

    def _dial(self, effect: Dial) -> None:
        """Late, perhaps: by now it may have dialled the same lane of its own accord."""
        if (effect.hello.link, effect.hello.lane) not in self.lanes:
            lanes.dial(self, effect)

    def exit(self) -> None:
        if self.crashed or not (self.habits.stays and self._is_connected()):
            super().exit()

    def _is_connected(self) -> bool:
        return self.control is not None and self.control.open(0)

    def _learn(self, message: ToPeer) -> None:
        match message:
            case Wire(links):
                self._seen.extend(link.number for link in links)
            case Start(tag, attempt) | Abort(tag, attempt) | Outcome(tag, attempt):
                self._seen.extend((tag, attempt))
            case Topology(epoch):
                self._seen.append(epoch)

    # ── without a core ───────────────────────────────────────────────────────────────────────────────────────────────

    def _improvise(self, event: PeerEvent) -> None:
        match event:
            case FromMaster(message) if self.likely(self.habits.answers):
                self._reply(message)
            case LaneOffered(offer, hello):
                if (hello.link, hello.lane) not in self.lanes and self.likely(0.8):
                    lanes.accept(self, AcceptLane(offer, hello.link, hello.lane))
                    self._stands((hello.link, hello.lane))
                elif self.likely(0.5):
                    lanes.refuse(self, RefuseLane(offer, "no"))
            case Call(number) if self.person is not None:
                self.person.answered(number, Failure(FailureKind.CLOSED, "nobody obeys"))

    def _reply(self, message: ToPeer) -> None:
        match message:
            case Ping():
                self.say(Pong())
            case Wire(links):
                for link in links:
                    self._meet(link)
            case Start(tag, attempt) | Abort(tag, attempt):
                self.say(Done(tag, attempt) if self.likely(0.5) else Failed(tag, attempt, "no"))

    def _meet(self, link: LinkSpec) -> None:
        """Make the link, lie about it, or both."""
        if link.dial and self.likely(0.8):
            for lane in range(link.lanes + 1):
                hello = LaneHello(RUN, self.identity.peer, link.peer, link.number, lane)
                if (link.number, lane) not in self.lanes:
                    lanes.dial(self, Dial(hello, link.host, link.port, DIAL_TIMEOUT_S, key=link.key))
        if self.likely(0.8):
            self.say(LinkUp(link.number) if self.likely(0.8) else LinkDown(link.number, "no"))

    # ── of its own accord ────────────────────────────────────────────────────────────────────────────────────────────

    def _plan(self) -> None:
        self.scheduler.after(self.random.expovariate(1.0 / self.habits.every_s), self.post, self._act)

    def healed(self) -> None:
        """The faults are over. Whoever is on the roster, or lies, is gone; a candidate may still play with its links
        until it is let in or refused, because that must hold nobody up."""
        accepted = any(known.peer == self.identity.peer for known in self.theatre.ledger.accepted())
        if accepted or not self.habits.alternates:
            self.crash()

    def _act(self) -> None:
        if not self.theatre.acting:
            return
        if not self._is_connected() and self.likely(0.3):
            self.exit()
            return
        what = self.random.choice((self._make_up, self._make_up, self._make_up, self._offer, self._break))
        what()
        self._plan()

    def _make_up(self) -> None:
        if self.habits.kinds:
            kind = self.random.choice(self.habits.kinds)
            for _ in range(self.random.choice((1, 1, 2, 4))):
                self.say((MESSAGES | MESSAGES_OF_CONSPIRATORS)[kind](self))

    def _offer(self) -> None:
        """Dial somebody and say a hello that fits little. Without proofs of identity it may be taken for another's."""
        target = self.random.choice(list(self.theatre.peers.values()))
        sender, receiver = (self.random.choice(list(self.theatre.peers)) for _ in range(2))
        hello = LaneHello(
            run=RUN if self.likely(0.8) else "another",
            sender=self.identity.peer if self.likely(0.7) else sender,
            receiver=target.identity.peer if self.likely(0.8) else receiver,
            link=self.number(),
            lane=self.random.choice((0, 0, 1, 1023)),
        )
        if target is self:
            return
        if hello.sender == sender:
            self.theatre.reach.trouble(sender, target.identity.peer)
        connection = Connection(self.theatre.network, self.distance_s + target.distance_s)
        connection.attach(1, lambda data: target.post(lanes.offered, target, connection, data), lambda cause: None)
        connection.send(0, encode(hello))
        self.scheduler.after(self.random.uniform(0.0, 20.0), connection.close, 0, "closed")

    def _in_turn(self, link: int, act: Callable[..., object], *arguments: Any) -> None:
        """Work on a link; one that alternates first breaks all others, once they stand, and lets that be known."""
        others = [end for end in self.lanes.values() if end.key[0] != link] if self.habits.alternates else []
        if not others:
            act(*arguments)
            return
        ripe = all(end.key in self._stood_at for end in others)
        ripe = ripe and self.scheduler.now - max(self._stood_at[end.key] for end in others) >= HOLD_S
        for end in others if ripe else ():
            self._close(end)
        self.scheduler.after(PAUSE_S if ripe else HOLD_S / 2, self.post, self._in_turn, link, act, *arguments)

    def _break(self) -> None:
        if self.lanes:
            self._close(self.random.choice(list(self.lanes.values())))

    def _stands(self, key: LaneKey) -> None:
        self._stood_at[key] = self.scheduler.now
        if key in self.lanes and self.likely(self.habits.flaps):
            self.scheduler.after(self.habits.flaps_after_s, self._close, self.lanes[key])

    def _close(self, end: LaneEnd) -> None:
        """Close a lane without a word to the core or to the run that has it."""
        if self.lanes.get(end.key) is end:
            del self.lanes[end.key]
            end.close("closed")
