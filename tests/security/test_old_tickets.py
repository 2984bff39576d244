"""A guest kept the ticket of a run in which it was alone, and meets a restarted master before the honest peers do."""

import contextlib
import threading

import pytest

from pccl import Kicked
from pccl.core.fields import KickKind
from pccl.core.master.recovery.gathering import Gathering
from pccl.core.messages.report import Answered, ReportPart
from pccl.core.messages.to_master import Resume
from pccl.core.messages.to_peer import Kick, Resumed, Topology, Welcome
from pccl.security import tokens
from pccl.security.secret import load
from pccl.security.tokens import Claim, Role
from tests.patience import HANG_S
from tests.security.attacker import Run, join
from tests.security.test_invented_runs import Gate


class Attack:
    """A run of one honest peer behind a gate, whose master is restarted; the guest is first."""

    def __init__(self, stack, secret, **limits):
        self.run = Run(stack, secret, follows=True, **limits)
        claim = Claim(Role.PEER, b"guest!")
        self.guest = tokens.mint(load(secret), claim, tokens.parse(self.run.token).pin).text()
        self._kept = self._alone()
        self.run.restart()
        self.gate = Gate(self.run.port)
        stack.callback(self.gate.close)
        self.anna = self.run.peer("anna", self.gate.address)
        self.anna.connect()
        self.gate.open.clear()
        self.run.restart()
        self.thief = self.run.attacker(self.guest)
        self.thief.say(*self._kept)

    def _alone(self):
        """What the guest was told when it was alone in a run, and the report that it makes of it."""
        with self.run.attacker(self.guest) as guest:
            guest.say(greeting := join())
            welcome, topology = guest.hear(Welcome), guest.hear(Topology)
        ring, size, ticket = topology.ring, topology.global_size, topology.ticket
        answered = Answered(last_number=max(ticket.number, topology.number))
        resume = Resume(greeting.me, welcome.run, topology.epoch, size, ticket.link, answered, dial=9, ticket=ticket)
        return resume, ReportPart(ring=ring, last=True)


@contextlib.contextmanager
def attack(secret, **limits):
    with contextlib.ExitStack() as stack:
        yield Attack(stack, secret, **limits)


def test_an_old_ticket_that_comes_first_ends_no_run(secret, monkeypatch):
    came, add = threading.Event(), Gathering.add
    monkeypatch.setattr(Gathering, "add", lambda *arguments: (add(*arguments), came.set()))
    with attack(secret, newborn_s=2.5) as under:
        heard = []
        hearing = threading.Thread(target=lambda: heard.append(under.thief.hear(Kick)))
        hearing.start()
        assert came.wait(HANG_S)
        under.gate.open.set()
        under.anna.update_topology()
        assert under.anna.world_size == 1
        hearing.join(HANG_S)
        assert heard[0].kind is KickKind.OTHER_RUN


def test_one_that_has_won_gives_way_to_the_later_run(secret):
    with attack(secret) as under:
        under.thief.hear(Resumed)
        under.gate.open.set()
        under.anna.update_topology()
        assert under.thief.hear(Kick).kind is KickKind.DISPLACED


def test_a_master_that_asked_for_no_date_would_lose_its_run(secret, monkeypatch):
    """The same attack, where no ticket is later than another: so it is one."""
    monkeypatch.setattr(Gathering, "outdone_by", lambda self, resume, now: False)
    with attack(secret) as under:
        under.thief.hear(Resumed)
        under.gate.open.set()
        with pytest.raises(Kicked, match="this master leads another run"):
            under.anna.update_topology()
