"""The status of a run, built by the master's core, and what views make of it."""

import msgspec
import pytest

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Close, DialBack, DialledBack, Received, Send
from pccl.core.fields import Identity, KickKind, Label
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.master.observers import DIALS_MAX
from pccl.core.messages.observers import AskProbe, AskStatus, Probed
from pccl.core.messages.to_master import AskPending, Join
from pccl.core.messages.to_peer import Kick
from pccl.core.status import EVENTS_KEPT, STATUS_VERSION, Status
from pccl.types import PeerId
from pccl.views import status as view
from pccl.views.top import screen
from pccl.wire.codec import decode_to_master, decode_to_observer, encode

HOSTILE = "<b>\x1b[2J[red]\n" + "x" * 50
OBSERVER = 99


def peer(number, name):
    identity = PeerId(f"{number:08x}" * 4)
    label = Label(name, "vm", 7, "0.1")
    return Join(Identity(identity, 0, "", 40_000 + number, 1, secret=f"{number}", label=label))


@pytest.fixture
def master():
    core = Master("run", MasterLimits(), release="0.1.0")
    core.handle(Received(1, peer(1, "tokyo-2"), "10.0.0.1"), 10.0)
    core.handle(Received(2, peer(2, HOSTILE), "10.0.0.2"), 11.0)
    return core


def ask(core, now, question=AskStatus()):  # noqa: B008 - frozen
    return core.handle(Received(OBSERVER, question, "10.9.9.9", unix_s=1e9), now)


def status(core, now):
    send, close = ask(core, now)
    assert (send.connections, close) == ((OBSERVER,), Close(OBSERVER))
    return decode_to_observer(encode(send.message))


def test_it_says_who_is_here(master):
    it = status(master, 12.0)
    assert (it.version, it.release, it.run, it.epoch, it.seen) == (STATUS_VERSION, "0.1.0", "run", 1, "10.9.9.9")
    assert (it.unix_s, it.age_s, it.size) == (1e9, 2.0, 2)
    tokyo, hostile = it.peers
    assert (tokyo.name, tokyo.stage, tokyo.rank, tokyo.seen, tokyo.port) == (
        "tokyo-2",
        "accepted",
        0,
        "10.0.0.1",
        40_001,
    )
    assert (hostile.stage, hostile.rank, hostile.age_s) == ("candidate", None, 1.0)
    assert hostile.name == "<b>?[2J[red]?" + "x" * 34 + "…"


def test_looking_changes_nothing(master):
    before = status(master, 12.0)
    deadline = master.next_deadline()
    for question in (AskStatus(), AskProbe(1, "n")):
        ask(master, 1e6, question)
    assert master.next_deadline() == deadline
    assert msgspec.structs.replace(status(master, 12.0), unix_s=0) == msgspec.structs.replace(before, unix_s=0)


def test_a_wait_is_told_with_its_age_and_those_who_are_missing(master):
    it = status(master, 20.0)
    (wait,) = it.waits
    assert (wait.age_s, wait.bound_s, wait.works) == (9.0, None, False)
    assert wait.missing == (it.peers[0].peer,)
    assert view.health(it) == "waiting for tokyo-2 (00000001), for 9.0 s"
    assert not view.healthy(it)
    assert view.healthy(status(master, 12.0))


def test_a_probe_is_dialled_for_its_observer_alone(master):
    (dial,) = ask(master, 12.0, AskProbe(40_000, "nonce"))
    assert dial == DialBack(OBSERVER, "10.9.9.9", 40_000, "nonce", dial.timeout_s)
    send, close = master.handle(DialledBack(OBSERVER, "10.9.9.9", "a\nb", 0.5), 13.0)
    assert (send, close) == (Send((OBSERVER,), Probed("10.9.9.9", "a?b", 0.5)), Close(OBSERVER))


def test_no_other_address_is_dialled_whatever_is_asked_for(master):
    """Any program on the network could have the master dial any other, and read in the answer what is there."""
    body = encode(AskProbe(22, "n"))
    asked = msgspec.msgpack.decode(body) | {"host": "10.0.0.66"}
    (dial,) = ask(master, 12.0, decode_to_master(msgspec.msgpack.encode(asked)))
    assert (dial.host, dial.port) == ("10.9.9.9", 22)


def test_probes_are_bounded(master):
    for _ in range(DIALS_MAX):
        ask(master, 12.0, AskProbe(1, "n"))
    send, _ = ask(master, 12.0, AskProbe(1, "n"))
    assert isinstance(send.message, Kick)
    assert send.message.kind is KickKind.FULL
    master.handle(DialledBack(OBSERVER, "", "", 0.1), 13.0)
    assert isinstance(ask(master, 13.0, AskProbe(1, "n"))[0], DialBack)


def test_a_peer_that_asks_like_an_observer_is_kicked(master):
    effects = master.handle(Received(1, AskStatus(), ""), 12.0)
    kicks = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Kick)]
    assert [kick.kind for kick in kicks] == [KickKind.PROTOCOL]


def test_the_latest_events_are_kept(master):
    for number in range(EVENTS_KEPT):
        master.handle(Received(100 + number, peer(1000 + number, "x"), ""), 12.0)
        master.handle(Received(100 + number, AskPending(), ""), 12.0)  # Not accepted: it is kicked for that.
    it = status(master, 13.0)
    assert len(it.events) == EVENTS_KEPT
    assert {each.event for each in it.events} == {"kicked"}
    assert it.events[-1].ago_s == 1.0


def test_waits_are_told_again_with_age_and_bound(master):
    told, now = [], 12.0
    while now < 700.0:
        now = max(master.next_deadline() or now, now + 0.5)
        effects = master.handle(Tick(), now)
        told += [each.reason for each in effects if getattr(each, "event", "") == "waits"]
        for connection in (1, 2):  # Both answer all pings, so that neither is judged by its silence.
            master.roster.find(connection).pulse.pings.clear()
    ages = [line.rpartition("; for ")[2].split()[0] for line in told]
    assert len(told) == 4, told
    assert [int(age) // 10 * 10 for age in ages[1:]] == [10, 60, 600]
    assert told[1].endswith(" s now (no limit while they answer, 60 s if not)")


def test_lines_for_people_are_text(master):
    it = status(master, 20.0)
    told = view.lines(it)
    assert told[0].startswith("run run, epoch 1: 1 peer and 1 more connected; waiting for tokyo-2 (00000001)")
    assert any("tokyo-2 (00000001)" in line for line in told)
    shown = [line.text for line in screen("h:1", it, [], 40)]
    for line in (*told, *shown):
        assert line.isprintable()
    assert "x" * 40 not in "".join(told)


def test_a_screen_without_a_master_says_so_and_keeps_the_last(master):
    assert [line.text for line in screen("h:1", None, ["gone"], 40)] == ["pccl top  h:1", "gone"]
    lines = [line.text for line in screen("h:1", status(master, 12.0), ["gone"], 40)]
    assert lines[1] == "gone"
    assert any("tokyo-2" in line for line in lines)


def test_the_status_fits_a_frame_however_many_there_are():
    core = Master("run", MasterLimits(peers_max=6000))
    for number in range(5000):
        core.handle(Received(1000 + number, peer(number + 1, "😀" * 48), "10.0.0.1"), 1.0)
    it = status(core, 2.0)
    assert isinstance(it, Status)
    assert (len(it.peers), it.size) == (4096, 5000)
