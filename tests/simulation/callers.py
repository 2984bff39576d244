"""Programs that call the master without being peers: observers who ask, and operators who put peers out."""

from random import Random
from typing import TYPE_CHECKING

from pccl.core.messages.observers import AskProbe, AskStatus, KickPeer
from pccl.core.messages.to_master import FromObserver
from pccl.core.rights import Rights
from pccl.wire.codec import encode
from pccl.wire.framing import frame
from tests.simulation.network import Connection

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre


def observe(theatre: "Theatre", random: Random) -> None:
    """An observer asks for the status, or to be dialled; it may go before the answer comes. It comes back until all
    have left."""
    if not theatre.master.gone:
        ask = AskProbe(40_000, "nonce") if random.random() < 0.2 else AskStatus()
        connection = _call(theatre, ask, Rights.ALL)
        if random.random() < 0.3:
            connection.close(0, "seen enough")
    if theatre.peers or theatre.acting:
        theatre.scheduler.after(random.uniform(0.1, 4.0), observe, theatre, random)


def operate(theatre: "Theatre", random: Random) -> None:
    """Somebody puts a peer out, by its name or its id, or has no right to, or means nobody or several."""
    if not theatre.acting:
        return
    hosts = list(theatre.peers.values())
    if hosts and not theatre.master.gone:
        host = random.choice(hosts)
        called = random.choice((host.identity.peer, host.identity.label.name, host.name, "nobody", "p"))
        rights = random.choice((Rights.ALL, Rights.ALL & ~Rights.OPERATE))
        if Rights.OPERATE in rights and called in (host.identity.peer, host.identity.label.name, host.name):
            host.harms.append("an operator meant it")
        _call(theatre, KickPeer(called or "nobody", "by hand"), rights)
    theatre.scheduler.after(random.uniform(5.0, 40.0), operate, theatre, random)


def _call(theatre: "Theatre", message: FromObserver, rights: Rights) -> Connection:
    connection = Connection(theatre.network, 0.01)
    number = theatre.master.connected(connection, "10.9.9.9")
    theatre.observers.add(number)
    theatre.rights[number] = rights
    connection.send(0, frame(encode(message)))
    return connection
