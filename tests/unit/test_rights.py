"""What a connection may do, as the master's core sees it."""

import pytest

from pccl.core.effects.master import Received
from pccl.core.fields import Identity, KickKind
from pccl.core.messages.observers import AskStatus, KickPeer, PeerKicked
from pccl.core.messages.to_master import Join
from pccl.core.messages.to_peer import Kick, Topology
from pccl.core.rights import Rights, without_secret
from pccl.core.status import Status
from tests.unit.scripted_master import Stage


class Run(Stage):
    """With one peer in it."""

    def __init__(self) -> None:
        super().__init__()
        self.say(1, Join(Identity("anna-0001", 0, "", 1, 0)))
        assert self.last(1, Topology)

    def say(self, connection: int, message: object, rights: Rights = Rights.ALL) -> None:
        event = Received(connection, message, "10.0.0.9", rights=rights)  # type: ignore[arg-type]
        self._note(self.master.handle(event, self.now))


def test_the_master_s_own_machine_operates_where_there_is_no_secret() -> None:
    for local in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
        assert without_secret(local) is Rights.ALL
    for far in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "", "1270.0.0.1"):
        assert without_secret(far) == Rights.JOIN | Rights.OBSERVE | Rights.BRING_STATE


@pytest.mark.parametrize(
    ("message", "right"),
    [
        (Join(Identity("bert-0002", 0, "", 1, 0)), Rights.JOIN),
        (AskStatus(), Rights.OBSERVE),
        (KickPeer("anna-0001"), Rights.OPERATE),
    ],
)
def test_without_the_right_nothing_happens_and_the_asker_reads_why(message: object, right: Rights) -> None:
    run = Run()
    epoch = run.master.roster.epoch
    run.say(2, message, Rights.ALL & ~right)
    refused = run.last(2, Kick)
    assert isinstance(refused, Kick)
    assert refused.kind is KickKind.NO_RIGHT
    assert 2 in run.closed
    assert (run.master.roster.epoch, len(run.master.roster)) == (epoch, 1)
    run.say(3, message)
    assert run.last(3, Kick) is None
    assert isinstance(message, Join) or run.last(3, Status) or run.last(3, PeerKicked)


def test_a_peer_does_not_operate_on_its_own_connection() -> None:
    run = Run()
    run.say(1, KickPeer("anna-0001"))
    kicked = run.last(1, Kick)
    assert isinstance(kicked, Kick)
    assert kicked.kind is KickKind.PROTOCOL
