"""What is bounded by address is bounded for IPv6 too: a machine there has a network of 64 bits, not one address."""

import pytest

from pccl.core.effects.both import Note
from pccl.core.effects.master import Closed, MasterEffect, Received, Send
from pccl.core.fields import Identity, KickKind
from pccl.core.limits import MasterLimits
from pccl.core.master.candidates import FREE_FAILURES, FREE_S
from pccl.core.master.master import Master
from pccl.core.master.ration import LINES_MAX
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import AskPending, Join, LinkUp, VoteTopology
from pccl.core.messages.to_peer import Kick, PendingAnswer, Wire
from pccl.types import PeerId

HOSTS = ["2001:db8:0:1::{:x}", "fe80::{:x}%eth0", "203.0.113.9"]
"""Of one machine each, and one of IPv4."""


def join(number: int) -> Join:
    return Join(Identity(PeerId(f"{number:032x}"), 0, "", 1234, 0))


@pytest.fixture
def master() -> Master:
    """With one member, at connection 1."""
    master = Master("run", MasterLimits(address_candidates_max=8))
    master.handle(Received(1, join(1), "10.0.0.1"), 0.0)
    assert master.is_member(1)
    return master


@pytest.mark.parametrize("host", HOSTS)
def test_s10_one_machine_does_not_fill_the_run(master: Master, host: str) -> None:
    kicks: list[Kick] = []
    for number in range(2, 100):
        effects = master.handle(Received(number, join(number), host.format(number)), 1.0)
        kicks += [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Kick)]
    assert len(master.roster.candidates) == 8
    assert {each.kind for each in kicks} == {KickKind.FULL}
    master.handle(Received(200, join(200), "2001:db8:0:2::1"), 1.0)
    assert len(master.roster.candidates) == 9


@pytest.mark.parametrize("host", HOSTS)
def test_s11_silent_candidates_of_one_machine_rest(master: Master, host: str) -> None:
    """Each spoils a trial from another of its addresses, until its machine rests."""
    tried = []
    now = 1.0
    for number in range(2, 6):
        master.handle(Received(number, join(number), host.format(number)), now)
        tried.append(pending(master, now))
        if tried[-1]:
            master.handle(Received(1, VoteTopology()), now)
            now += FREE_S
            master.handle(Closed(number, "reset"), now)
    assert tried == [True] * (1 + FREE_FAILURES) + [False] * (3 - FREE_FAILURES)


def pending(master: Master, now: float) -> bool:
    effects = obey(master, master.handle(Received(1, AskPending()), now), now)
    sent = [each.message for each in effects if isinstance(each, Send)]
    return next(each.pending for each in sent if isinstance(each, PendingAnswer))


def obey(master: Master, effects: list[MasterEffect], now: float) -> list[MasterEffect]:
    """The member answers pings and makes its links."""
    for each in [each for each in effects if isinstance(each, Send) and 1 in each.connections]:
        if isinstance(each.message, Ping):
            master.handle(Received(1, Pong()), now)
        elif isinstance(each.message, Wire):
            for link in each.message.links:
                master.handle(Received(1, LinkUp(link.number)), now)
    return effects


@pytest.mark.parametrize("host", HOSTS)
def test_s14_those_of_one_machine_are_a_few_lines(master: Master, host: str) -> None:
    lines = []
    for number in range(2, 300):
        effects = master.handle(Received(number, join(number), host.format(number)), 1.0)
        effects += master.handle(Closed(number, "reset"), 1.0)
        lines += [each for each in effects if isinstance(each, Note)]
    assert len(lines) == LINES_MAX
