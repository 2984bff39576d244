"""Stories played from text files: command lines above `----`, what happened below.

    peer anna [group=1] [lanes=2] [threads=2] [nat] [late]    a process starts and calls connect; late: as below
    peer anna group=1 party=lab of=2        the same, as one of two peers of the machine lab
    visitor vera [group=1] [nat]            a process starts and calls prefetch_shared_state
    call anna update_topology               or are_peers_pending, goodbye, sync 3, collective 0 [count=8]
    interrupt anna                          Ctrl-C in anna's last call
    done anna 0    fail anna 0              the data plane ends anna's run of tag 0
    spoil anna 0                            the same as done, with another result than the others have
    crash anna     freeze anna    thaw anna the process is gone, stopped, continued
    crash master   restart master           so is the master's; another one starts, and knows nothing
    cut anna       unite anna               anna cannot reach the master until they are united
    break anna                              anna's connection to the master breaks; it may dial at once
    deafen anna                             from now on what the master sends on anna's connection does not arrive
    late anna                               the same as break; anna gives up its next connection too, and what it sent
                                            there arrives when the master has read newer messages of it
    sever anna bert       lose anna bert    all lanes between the two break, or pass no bytes
    copy anna                               another process starts with all that anna is, and dials the master
    block anna bert                         anna cannot dial bert any more
    deny anna                               from now on anna says of each of its links that it is down
    wait 10                                 let seconds pass
    explain                                 what the master says it waits for
    show anna                               what anna knows

Each command is followed by half a second, in which everything that needs no timer happens. All checkers look on.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

from msgspec import structs

from pccl.core.effects.peer_effects import Answer, Failure, StartExchange
from pccl.core.effects.peer_events import (
    ArePeersPending,
    CallCollective,
    FetchShared,
    FromMaster,
    LaneClosed,
    PeerEvent,
    Request,
    SayGoodbye,
    SyncShared,
    UpdateTopology,
    WaitAccepted,
)
from pccl.core.fields import CollectiveSpec, Identity, Party
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import ToMaster
from pccl.core.messages.to_peer import Awaited, Resumed, ToPeer, Waiting, Welcome, Wire
from pccl.types import DataType, PeerId, ReduceOp, SharedStateSyncStrategy
from pccl.wire.codec import decode_to_peer, encode
from pccl.wire.framing import TO_PEER_FRAME_MAX, FrameReader, frame
from tests.simulation.checkers import Checker
from tests.simulation.ledger import Known
from tests.simulation.network import Connection
from tests.simulation.peer_host import PeerHost
from tests.simulation.people import LAYOUT
from tests.simulation.plan import by_hand
from tests.simulation.plane import Part, Plane, Run
from tests.simulation.theatre import Theatre
from tests.simulation.trace import Trace, tell

DIRECTORY = Path(__file__).parent / "scenarios"
SEPARATOR = "----\n"
SETTLE_S = 0.5
WAY_S = 0.005

_CALLS: dict[str, Callable[[], Request]] = {
    "update_topology": UpdateTopology,
    "are_peers_pending": ArePeersPending,
    "goodbye": SayGoodbye,
}


class HandPlane(Plane):
    """A data plane whose runs end when the story says so, or at once when they are aborted."""

    def _plan_end(self, run: Run) -> None:
        for part in run.parts.values():
            part.result = sum(each.value for each in run.parts.values())

    def spoil(self, host: PeerHost, tag: int) -> None:
        """What this peer gets is not what the others get."""
        part = self._running(host, tag)
        assert part.result is not None, "all have begun"
        part.result, part.spoilt = part.result + 1, True

    def _running(self, host: PeerHost, tag: int) -> Part:
        return next(each for each in self.parts_of(host) if each.effect.tag == tag and not each.ended)

    def end_run(self, host: PeerHost, tag: int, cause: str) -> None:
        """End the run of this tag at this peer."""
        part = self._running(host, tag)
        part.succeeded = not cause
        self.end(part, cause, ())

    def parts_of(self, host: PeerHost) -> list[Part]:
        """Every run of this peer."""
        return [part for (name, _), part in self._parts.items() if name == host.name]


class Recorder(Checker):
    """Writes down what a reader of the story wants to know: all messages but signs of life, and all answers."""

    name = "recorder"
    lines: list[str]

    def __init__(self, theatre: Theatre) -> None:
        super().__init__(theatre)
        self.lines = []
        self._calls: dict[tuple[str, int], Request] = {}

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Ping | Pong | Welcome | Waiting | Awaited):
            told = _links(message) if isinstance(message, Wire) else tell(message)
            self.lines.append(f"{self.theatre.master.name} → {known.peer}: {told}")

    def master_sends_again(self, known: Known, message: ToPeer) -> None:
        again = "" if isinstance(message, Resumed) else " again"
        self.lines.append(f"{self.theatre.master.name} → {known.peer}{again}: {tell(message)}")

    def peer_sends(self, host: PeerHost, message: ToMaster) -> None:
        if not isinstance(message, Ping | Pong):
            self.lines.append(f"{host.name} → master: {tell(message)}")

    def peer_sends_again(self, host: PeerHost, message: ToMaster) -> None:
        self.lines.append(f"{host.name} → master again: {tell(message)}")

    def run_started(self, part: Part) -> None:
        if isinstance(part.effect, StartExchange):
            parcels = [number for _, number in part.effect.parcels]
            self.lines.append(f"{part.host.name} reduces tag {part.effect.tag} from the parcels {parcels}")
            return
        effect, lanes = part.effect, [lane for _, lane in part.effect.to_next]
        strands = f" in {effect.strands} strands" if effect.strands > 1 else ""
        self.lines.append(
            f"{part.host.name} runs tag {effect.tag} as {effect.rank} of {effect.size} on {lanes}{strands}"
        )

    def call_made(self, host: PeerHost, call: int, request: Request) -> None:
        self._calls[host.name, call] = request

    def call_resolved(self, host: PeerHost, call: int, answer: Answer) -> None:
        request = self._calls[host.name, call]
        tag = f" {request.tag}" if isinstance(request, CallCollective) else ""
        told = f"FAILS, {answer.kind.value}: {answer.reason}" if isinstance(answer, Failure) else tell(answer)
        self.lines.append(f"{host.name}: {type(request).__name__}{tag} = {told}")
        if isinstance(request, SayGoodbye):
            self.theatre.scheduler.after(0.0, host.exit)


def _links(wire: Wire) -> str:
    links = (f"{link.number} {'to' if link.dial else 'from'} {link.peer}" for link in wire.links)
    return f"Wire({', '.join(links)})"


class Story:
    """One scenario being played."""

    def __init__(self) -> None:
        self.theatre = Theatre(by_hand(), Random(0), Trace(None), (Recorder,))
        self.theatre.plane = self.plane = HandPlane(self.theatre)
        recorders = [hook.__self__ for hook in self.theatre.audience.hooks["run_started"] if hasattr(hook, "__self__")]
        self.recorder = next(each for each in recorders if isinstance(each, Recorder))
        self._called: dict[str, int] = {}
        """The last call of each peer."""

    def play(self, commands: str) -> str:
        """Play all commands and return what happened."""
        lines = [line for line in commands.splitlines() if line.strip() and not line.startswith("#")]
        return "\n".join(self._command(line) for line in lines)

    def _command(self, line: str) -> str:
        name, *words = line.split()
        command: Callable[..., None] = getattr(self, f"_{name}")
        command(*words)
        self._pass(SETTLE_S)
        happened = [f"    {each}" for each in self.recorder.lines]
        self.recorder.lines.clear()
        return "\n".join([line, *happened])

    def _pass(self, seconds: float) -> None:
        self.theatre.scheduler.run(self.theatre.scheduler.now + seconds, lambda: False)

    def _host(self, name: str) -> PeerHost:
        return self.theatre.hosts_by_name[name]

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _peer(self, name: str, *options: str) -> None:
        host = self._place(name, options, visits=False)
        host.call(host.next_number(), WaitAccepted())

    def _visitor(self, name: str, *options: str) -> None:
        host = self._place(name, options, visits=True)
        host.call(host.next_number(), FetchShared(LAYOUT))

    def _place(self, name: str, options: tuple[str, ...], visits: bool) -> PeerHost:
        chosen = dict(option.split("=") for option in options if "=" in option)
        number = len(self.theatre.hosts_by_name) + 1
        address = (f"10.0.0.{number}", 40_000)
        group, lanes = int(chosen.get("group", 0)), int(chosen.get("lanes", 0))
        party = Party(chosen.get("party", ""), int(chosen.get("of", 1)))
        threads = int(chosen.get("threads", 1))
        more = {"secret": f"of {name}", "party": party, "threads": threads}
        identity = Identity(PeerId(name), group, *address, lanes, visits, **more)
        host = self.theatre.place(PeerHost(self.theatre, identity, address, WAY_S))
        host.gives_up_next = "late" in options
        if "nat" in options:
            self.theatre.reach.behind_nat.add(host.identity.peer)
        return host

    def _call(self, name: str, what: str, *options: str) -> None:
        host = self._host(name)
        if what == "collective":
            count = int(dict(option.split("=") for option in options[1:]).get("count", 8))
            request: Request = CallCollective(int(options[0]), CollectiveSpec(count, DataType.FLOAT, ReduceOp.SUM))
        elif what == "sync":
            host.revision, host.word = int(options[0]), b"revision %7d" % int(options[0])
            how = SharedStateSyncStrategy.ENFORCE_POPULAR
            request = SyncShared(host.revision, how, LAYOUT, host.word)
        else:
            request = _CALLS[what]()
        self._called[name] = host.next_number()
        host.call(self._called[name], request)

    def _interrupt(self, name: str) -> None:
        self._host(name).abandon(self._called[name])

    def _expire(self, name: str) -> None:
        self._host(name).expire(self._called[name])

    def _done(self, name: str, tag: str) -> None:
        self.plane.end_run(self._host(name), int(tag), "")

    def _spoil(self, name: str, tag: str) -> None:
        self.plane.spoil(self._host(name), int(tag))
        self._done(name, tag)

    def _fail(self, name: str, tag: str) -> None:
        self.plane.end_run(self._host(name), int(tag), "a segment is corrupt")

    def _crash(self, name: str) -> None:
        if name == "master":
            self.theatre.master.crash()
        else:
            self._host(name).crash()

    def _restart(self, name: str) -> None:
        assert name == "master", "peers come once"
        self.theatre.restart_master()

    def _cut(self, name: str) -> None:
        """Its connection breaks, and it cannot make another one until they are united."""
        host = self._host(name)
        host.harms.append("cut off from the master")
        self.theatre.havoc.parted[host.identity.peer] = None
        if host.control is not None:
            host.control.cut("reset by the network")

    def _break(self, name: str) -> None:
        control = self._host(name).control
        assert control is not None, "there is a connection"
        control.cut("reset by the network")

    def _late(self, name: str) -> None:
        self._host(name).gives_up_next = True
        self._break(name)

    def _deafen(self, name: str) -> None:
        control = self._host(name).control
        assert control is not None, "there is a connection"
        control.hold((0,))

    def _sever(self, one: str, other: str) -> None:
        for connection in self._between(one, other):
            connection.cut("reset by the network")

    def _lose(self, one: str, other: str) -> None:
        for connection in self._between(one, other):
            connection.vanish((0, 1))

    def _between(self, one: str, other: str) -> list[Connection]:
        self.theatre.reach.trouble(*(self._host(name).identity.peer for name in (one, other)))
        return [end.connection for end in self._host(one).lanes.values() if end.other == other]

    def _unite(self, name: str) -> None:
        self.theatre.havoc.parted.pop(self._host(name).identity.peer, None)

    def _copy(self, name: str) -> None:
        """A virtual machine that was saved and started twice, say."""
        self._come_as(name, self._host(name).identity.secret)

    def _pretend(self, name: str) -> None:
        """Somebody knows all that others know of this peer."""
        self._come_as(name, "a guess")

    def _come_as(self, name: str, secret: str) -> None:
        there = Connection(self.theatre.network, WAY_S)
        there.attach(0, self._heard_by_copy, lambda cause: None)
        self.theatre.master.connected(there, "10.0.1.1")
        host = self._host(name)
        identity = structs.replace(host.identity, secret=secret)
        resume = structs.replace(host.core._resume(), me=identity, updating=False, asking=False)
        host.harms.append("copied")
        there.send(0, frame(encode(resume)))

    def _heard_by_copy(self, data: bytes) -> None:
        for body in FrameReader(TO_PEER_FRAME_MAX).feed(data):
            self.recorder.lines.append(f"master → the other: {tell(decode_to_peer(body))}")

    def _freeze(self, name: str) -> None:
        self._host(name).harms.append("freeze")
        self._host(name).freeze()

    def _thaw(self, name: str) -> None:
        self._host(name).thaw()

    def _block(self, caller: str, target: str) -> None:
        self.theatre.reach.block(self._host(caller).identity.peer, self._host(target).identity.peer)

    def _deny(self, name: str) -> None:
        host = self._host(name)
        host.harms.append("hostile")
        handle = host.handle

        def deny(event: PeerEvent) -> None:
            handle(event)
            if isinstance(event, FromMaster) and isinstance(event.message, Wire):
                for number in list(host.wired):
                    handle(LaneClosed(number, 0, "no"))

        host.handle = deny  # type: ignore[method-assign]
        for number in list(host.wired):
            handle(LaneClosed(number, 0, "no"))

    def _wait(self, seconds: str) -> None:
        self._pass(float(seconds))

    def _explain(self) -> None:
        self.recorder.lines.extend(self.theatre.explain() or ("nobody waits",))

    def _show(self, name: str) -> None:
        core = self._host(name).core
        self.recorder.lines.append(f"epoch {core.epoch}, ring {tell(core.ring)}, {tell(core.sizes)}")


def play(path: Path) -> tuple[str, str]:
    """What a scenario's file says should happen, and what does."""
    commands, _, expected = path.read_text().partition(SEPARATOR)
    return expected, Story().play(commands) + "\n"


def rewrite_all() -> None:
    """Write what happens now into all files: look at the difference before you keep it."""
    for path in sorted(DIRECTORY.glob("*.txt")):
        commands = path.read_text().partition(SEPARATOR)[0]
        path.write_text(commands + SEPARATOR + Story().play(commands) + "\n")
