"""Turns of connections that have proved nothing: whose is next, what it is charged, and floods of real handshakes."""

import asyncio
import contextlib
import secrets
import selectors
import socket
import ssl
import threading
import time

import pytest

from pccl import Communicator, MasterNode
from pccl.net import turns
from pccl.net.turns import ALL_BURST_S, ALL_SHARE, EACH_BURST_S, EACH_SHARE, Budget, Turns
from pccl.security import control, tls, tokens
from pccl.wire.framing import Purpose, preamble
from tests.patience import HANG_S
from tests.unit.scripted import run


class Clock:
    """Time that passes when a step costs some, or when it is told to."""

    def __init__(self):
        self.now = self.cost = 0.0

    def __call__(self):
        return self.now

    def spent(self):
        return self.cost


def test_a_budget_refills_and_never_above_its_burst():
    budget = Budget(0.05, 0.25, 0.0)
    budget.spend(0.35)
    assert budget.wait_s(0.0) == pytest.approx(2.0)
    assert budget.wait_s(2.0) == pytest.approx(0.0)
    assert budget.left(1000.0) == 0.25
    assert budget.full(1000.0)


class Line:
    """Steps that cost what they are told to, in a loop whose time stands still."""

    def __init__(self):
        self.clock = Clock()
        self.turns = Turns(self.clock, self.clock.spent)
        self.went = []

    def ask(self, number, origin, cost_s=0.001):
        def step():
            self.clock.cost += cost_s
            self.went.append(number)

        self.turns.ask(number, origin, step)

    async def pass_turns(self, count=2000):
        for _ in range(count):
            await asyncio.sleep(0)


def test_addresses_take_turns():
    async def scene():
        line = Line()
        for number in range(10):
            line.ask(number, "flood")
        line.ask(100, "honest")
        await line.pass_turns()
        assert line.went[:3] == [0, 100, 1]
        assert line.went[3:] == list(range(2, 10))

    run(scene())


def test_one_address_spends_its_budget_and_others_go_on():
    async def scene():
        line = Line()
        for number in range(1000):
            line.ask(number, "flood")
        await line.pass_turns()
        assert len(line.went) == pytest.approx(EACH_BURST_S / 0.001, abs=1)
        line.ask(5000, "honest")  # Those of the flood sleep until its budget has grown.
        await line.pass_turns()
        assert line.went[-1] == 5000
        line.turns.stop()

    run(scene())


def test_all_together_spend_no_more_than_theirs():
    async def scene():
        line = Line()
        for number in range(2000):
            line.ask(number, f"address {number % 100}")
        await line.pass_turns(4000)
        assert len(line.went) == pytest.approx(ALL_BURST_S / 0.001, abs=1)
        line.turns.stop()

    run(scene())
    assert EACH_SHARE < ALL_SHARE < 1.0


def test_those_that_prove_themselves_cost_nothing():
    async def scene():
        line = Line()
        for number in range(1000):
            line.ask(number, "router")
            await line.pass_turns(3)
            line.turns.refund(number)
            await line.pass_turns(2)
            line.turns.forget(number)
        assert line.went == list(range(1000))

    run(scene())


def test_what_cannot_wait_is_paid_all_the_same():
    """A second step goes at once, and the line waits for it afterwards."""

    async def scene():
        line = Line()

        def step():
            line.clock.cost += 10 * EACH_BURST_S

        line.turns.pay(1, "flood", step)
        line.ask(2, "flood")
        await line.pass_turns(5)
        assert line.went == []
        line.turns.refund(1)  # It has proved itself: what waits for its budget looks again later, another line at once.
        await line.pass_turns(5)
        line.ask(3, "honest")
        await line.pass_turns(5)
        assert sorted(line.went) == [2, 3]
        line.turns.stop()

    run(scene())


def test_a_line_gives_back_only_so_much(monkeypatch):
    """One with a token that connects and proves itself without end costs the master no more than one that does not."""
    monkeypatch.setattr(turns, "GIVEN_BACK_BURST", 100.0)

    async def scene():
        line = Line()
        for number in range(1000):
            line.ask(number, "holder")
            await line.pass_turns(3)
            line.turns.refund(number)
            await line.pass_turns(2)
            line.turns.forget(number)
        assert len(line.went) == pytest.approx(100 + EACH_BURST_S / 0.001, abs=2)
        line.clock.now += 60.0
        line.ask(5000, "holder")
        await line.pass_turns(5)
        assert line.went[-1] == 5000
        line.turns.stop()

    run(scene())


def test_one_that_is_gone_has_no_turn_and_leaves_nothing():
    async def scene():
        line = Line()
        line.ask(1, "a")
        line.ask(2, "a")
        line.turns.forget(1)
        await line.pass_turns(5)
        line.turns.forget(2)
        assert line.went == [2]
        assert [line.turns._lines, line.turns._spent, line.turns._origins] == [{}, {}, {}]

    run(scene())


def test_budgets_of_addresses_are_bounded(monkeypatch):
    monkeypatch.setattr(turns, "ADDRESSES_KEPT", 10)

    async def scene():
        line = Line()
        for number in range(100):
            line.ask(number, f"address {number}")
            await line.pass_turns(3)
            line.clock.now += 1.0
            line.turns.forget(number)
        assert len(line.turns._each) <= 11

    run(scene())


# ── a flood of real ones ─────────────────────────────────────────────────────────────────────────────────────────────


class Flood:
    """Handshakes from another address without end: as far as TLS goes without a proof."""

    def __init__(self, port, head):
        """`head` makes what is sent before TLS."""
        self._port, self._head, self._over = port, head, threading.Event()
        self.begun = self.answered = 0
        self._context = tls.dialling_context()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args):
        self._over.set()
        self._thread.join(HANG_S)

    def _run(self):
        waiting = selectors.DefaultSelector()
        while not self._over.is_set():
            if len(waiting.get_map()) < 300:
                self._begin(waiting)
            for key, _ in waiting.select(0):
                self._go_on(key, waiting)
        for key in list(waiting.get_map().values()):
            key.fileobj.close()

    def _begin(self, waiting):
        sock = socket.socket()
        sock.bind(("127.0.0.2", 0))
        sock.connect(("127.0.0.1", self._port))
        sock.setblocking(False)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = self._context.wrap_bio(incoming, outgoing)
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
        sock.sendall(self._head() + outgoing.read())
        waiting.register(sock, selectors.EVENT_READ, [end, incoming, outgoing, 8])
        self.begun += 1

    def _go_on(self, key, waiting):
        """Through the handshake, so that the master computes all that it can be made to, and then anew."""
        end, incoming, outgoing, skipped = key.data
        with contextlib.suppress(OSError, ssl.SSLError):
            if data := key.fileobj.recv(65536):
                incoming.write(data[skipped:])
                key.data[3] = 0
                self.answered += skipped > 0
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                if more := outgoing.read():
                    key.fileobj.sendall(more)
                return
        waiting.unregister(key.fileobj)
        key.fileobj.close()


def certified(ours, tmp_path):
    """What master and peers have, and what the flood sends before TLS: here anybody gets as far as that."""
    return ours.master(), lambda master: ours.peer(), lambda master: preamble(Purpose.CONTROL_CERTIFIED)


def with_tokens(ours, tmp_path):
    """The same where it takes a knock, which is a fresh one each time: that of a token holder."""

    def head(master):
        token = tokens.parse(master.token)
        nonce = secrets.token_bytes(control.NONCE_BYTES)
        return preamble(Purpose.CONTROL_TLS) + control.knock(token.claim, token.key, nonce)

    return {"secret": tmp_path / "secret"}, lambda master: {"token": master.token}, head


@pytest.mark.parametrize("door", [certified, with_tokens])
def test_a_flood_of_handshakes_keeps_no_peer_out(ours, tmp_path, monkeypatch, door):
    """A peer joins and votes beside it. With budgets so small that three hundred handshakes wait for minutes, the flood
    is not answered for most of what it begins, and a peer of another address does not wait behind it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name, value in (("EACH_SHARE", 0.001), ("EACH_BURST_S", 0.005), ("ALL_SHARE", 0.2), ("ALL_BURST_S", 0.1)):
        monkeypatch.setattr(turns, name, value)
    of_master, of_peer, head = door(ours, tmp_path)
    with (
        MasterNode("127.0.0.1:0", **of_master) as master,
        Communicator(f"127.0.0.1:{master.port}", listen="127.0.0.1", **of_peer(master)) as first,
        Flood(master.port, lambda: head(master)) as flood,
    ):
        began = time.monotonic()
        wait_for(lambda: flood.begun >= 300)
        second = Communicator(f"127.0.0.1:{master.port}", listen="127.0.0.1", **of_peer(master))
        joining = threading.Thread(target=second.connect, daemon=True)
        joining.start()
        while first.world_size < 2:
            first.update_topology()
        joining.join(HANG_S)
        assert second.world_size == 2
        second.close()
        allowed_s = 0.005 + 0.001 * (time.monotonic() - began)
        assert flood.answered < 10 + allowed_s / 0.0001, "no handshake costs less than a tenth of a millisecond"


def wait_for(condition):
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
