"""The parts of the shells on their own, with a core that does what the test says."""

import asyncio
import contextlib
import errno
import os
import threading

import pytest

from pccl.core.effects.master import Received, Send
from pccl.core.fields import Identity
from pccl.core.messages.to_master import Join
from pccl.core.messages.to_peer import Welcome
from pccl.net import sockets
from pccl.net.bounds import Bounds
from pccl.net.budgets import MEMBER_BACKLOG_MAX
from pccl.net.listening import Strangers
from pccl.net.master_shell import MasterShell
from pccl.net.peer_end import PeerEnd
from pccl.net.thread import LoopEnded, LoopThread
from pccl.wire.codec import encode
from pccl.wire.framing import Purpose, frame, preamble
from tests.unit.scripted import PATIENCE_S, ScriptedCore, drive, run, until

# ── driver ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_events_posted_by_effects_come_after_the_effects():
    async def story():
        order = []
        core = ScriptedCore(lambda event: ["a", "b"] if event == 1 else [])

        def carry_out(effect):
            order.append(effect)
            driver.post(f"after {effect}")

        driver = drive(core, carry_out)
        driver.post(1)
        assert order == ["a", "b"]
        assert core.events == [1, "after a", "after b"]

    run(story())


def test_the_timer_fires_once_the_deadline_has_passed():
    async def story():
        core = ScriptedCore()
        driver = drive(core)
        core.deadline = asyncio.get_running_loop().time() + 0.02

        def tick(event):
            if event == "tick":
                core.deadline = None
            return []

        core.answer = tick
        driver.post("begin")
        await until(lambda: "tick" in core.events)
        assert core.times[1] - core.times[0] < 1.0
        await asyncio.sleep(0.03)
        assert core.events == ["begin", "tick"]

    run(story())


def test_work_ends_in_its_event_and_can_be_given_up():
    async def story():
        core = ScriptedCore()
        driver = drive(core)

        async def work(event, wait):
            await wait.wait()
            return event

        gate, never = asyncio.Event(), asyncio.Event()
        driver.start(work("done", gate))
        given_up = driver.start(work("never", never))
        at_once = driver.start(work("not even begun", gate))
        at_once.cancel()
        await asyncio.sleep(0)
        given_up.cancel()
        gate.set()
        await until(lambda: given_up.done() and at_once.done() and core.events)
        assert core.events == ["done"]

    run(story())


def test_a_core_that_raises_ends_the_driver(caplog):
    async def story():
        bugs = []

        def answer(event):
            raise ZeroDivisionError

        core = ScriptedCore(answer)
        driver = drive(core, on_bug=bugs.append)
        driver.post(1)
        driver.post(2)
        assert core.events == [1]
        assert isinstance(bugs[0], ZeroDivisionError)

    run(story())
    assert "internal error" in caplog.text


def test_work_that_raises_ends_the_driver(caplog):
    """Its event will never come: the core must not wait for it."""

    async def story():
        bugs = []
        core = ScriptedCore()
        driver = drive(core, on_bug=bugs.append)

        async def work():
            await asyncio.sleep(0)
            raise ValueError("nobody thought of this")

        driver.start(work())
        await until(lambda: bugs)
        driver.post(1)
        assert core.events == []
        assert isinstance(bugs[0], ValueError)

    run(story())
    assert "internal error" in caplog.text


# ── strangers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_oldest_stranger_gives_way():
    async def story():
        ended = []
        strangers = Strangers(limit=3, timeout_s=60.0)
        for number in range(5):
            strangers.add(number, lambda cause, number=number: ended.append(number), f"10.0.0.{number}")
        assert ended == [0, 1]
        assert strangers.remove(3)
        assert not strangers.remove(3)
        strangers.expel_all("over")
        assert ended == [0, 1, 2, 4]
        assert len(strangers) == 0

    run(story())


def test_a_stranger_has_a_deadline():
    async def story():
        ended = []
        strangers = Strangers(timeout_s=0.01)
        strangers.add(1, ended.append)
        await until(lambda: ended)
        assert "within" in ended[0]

    run(story())


# ── the master's shell ───────────────────────────────────────────────────────────────────────────────────────────────

JOIN = Join(Identity("a" * 32, 0, "", 1234, 0))


@contextlib.asynccontextmanager
async def master_shell(core, host="127.0.0.1"):
    notes = []
    shell = MasterShell(core, Bounds(), notes.append, pytest.fail)
    shell.open(host, 0)
    try:
        yield shell
    finally:
        shell.stop()
        await asyncio.sleep(0)


def test_messages_arrive_with_the_address_they_come_from():
    async def story():
        core = ScriptedCore()
        async with master_shell(core, host="") as shell:
            _, writer = await asyncio.open_connection("127.0.0.1", shell.port)
            writer.write(preamble(Purpose.CONTROL) + frame(encode(JOIN)))
            await until(lambda: core.events)
            # Not ::ffff:127.0.0.1, which other peers might not be able to dial.
            (event,) = core.events
            assert event == Received(1, JOIN, "127.0.0.1", event.unix_s)
            assert event.unix_s > 1e9, "this machine's clock, for observers"
            writer.close()
            await until(lambda: len(core.events) == 2)
            assert core.events[1].connection == 1

    run(story())


def test_a_peer_that_does_not_read_is_closed():
    async def story():
        core = ScriptedCore()
        async with master_shell(core) as shell:
            reader, writer = await asyncio.open_connection("127.0.0.1", shell.port)
            writer.write(preamble(Purpose.CONTROL) + frame(encode(JOIN)))
            reader._transport.pause_reading()
            await until(lambda: core.events)
            core.answer = lambda event: [Send((1,), Welcome("r" * 64))] * 20000 if event == "flood" else []
            sent = 0
            while len(core.events) < 2 or core.events[-1] == "flood":
                shell._driver.post("flood")
                sent += 20000 * 64
                assert sent < 8 * MEMBER_BACKLOG_MAX, "it is still kept in memory"
                await asyncio.sleep(0)
            assert "does not read" in core.events[-1].cause
            writer.close()

    run(story())


def test_words_after_a_broken_message_are_not_heard():
    async def story():
        core = ScriptedCore()
        async with master_shell(core) as shell:
            reader, writer = await asyncio.open_connection("127.0.0.1", shell.port)
            writer.write(preamble(Purpose.CONTROL) + frame(b"\xc1") + frame(encode(JOIN)))
            await reader.read()
            assert core.events == []
            writer.close()

    run(story())


# ── sockets, threads ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_addresses_of_a_name_get_the_same_port():
    listeners = sockets.listen("localhost", 0)
    assert len({listener.getsockname()[1] for listener in listeners}) == 1
    for listener in listeners:
        listener.close()


def test_a_foreign_address_cannot_be_listened_on():
    with pytest.raises(OSError, match="not an address of this machine"):
        sockets.listen("203.0.113.1", 0)


@pytest.mark.parametrize(
    ("seen", "dialled"),
    [("::ffff:10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1"), ("fe80::1%lo", "fe80::1%lo")],
)
def test_mapped_addresses_are_unmapped(seen, dialled):
    assert sockets.plain_host(seen) == dialled


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_no_copy_of_our_sockets():
    (listener,) = sockets.listen("127.0.0.1", 0)
    descriptor = listener.fileno()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.fstat(descriptor)
            os.write(writer, b"open")
        except OSError:
            os.write(writer, b"closed")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"closed"
    assert os.fstat(descriptor)
    for pipe in (reader, writer):
        os.close(pipe)
    listener.close()


@pytest.mark.parametrize("handed_in", [True, False])
def test_an_interrupt_while_work_is_handed_in_gives_the_work_up(monkeypatch, handed_in):
    """The loop may have begun before the caller has anything to cancel."""
    thread = LoopThread("pccl-test", daemon=True)
    began, given_up = threading.Event(), threading.Event()

    async def forever():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    hand_in = thread._loop.call_soon_threadsafe

    def interrupted(function):
        monkeypatch.undo()
        if handed_in:
            hand_in(function)
            assert began.wait(PATIENCE_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.run(forever())
    if handed_in:
        assert given_up.wait(PATIENCE_S)
    assert began.is_set() == handed_in
    thread.stop()
    assert thread.join(PATIENCE_S)


def test_a_loop_that_ends_answers_whoever_waits():
    thread = LoopThread("pccl-test", daemon=True)
    failures = []
    started = threading.Event()

    async def forever():
        started.set()
        await asyncio.Event().wait()

    def call():
        try:
            thread.run(forever())
        except LoopEnded as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    started.wait(PATIENCE_S)
    thread.stop()
    caller.join(PATIENCE_S)
    assert thread.join(PATIENCE_S)
    assert len(failures) == 1
    with pytest.raises(LoopEnded):
        thread.run(forever())
    thread.post(pytest.fail)


class ResetTransport:
    """Of a connection that was reset, which asyncio has not noticed yet."""

    aborted = False

    def write(self, data):
        pass

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return False

    def write_eof(self):
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    def abort(self):
        self.aborted = True


def test_a_connection_that_was_reset_can_be_closed():
    async def close():
        end, transport = PeerEnd(lambda body: None, lambda cause: None), ResetTransport()
        end.connection_made(transport)
        end.close()
        return transport.aborted

    assert asyncio.run(close())
