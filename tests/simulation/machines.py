"""Machines with several peers, each of them a party: how they come, and come again, and what is left of one; and what
the cores of any machine allow."""

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from pccl.core.fields import Identity, Party

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.plan import Plan
    from tests.simulation.theatre import Theatre

LACKING = 0.1
"""How often a rank of a machine does not come."""
APART_S = (0.0, 0.0, 0.5, 20.0)
"""How long after the first its ranks come at the latest."""
CLAIMS = 0.5
"""How often an enemy claims the party of others, where there are any."""


Place = tuple[str, int]


class Rank(NamedTuple):
    """One peer of a machine."""

    party: Party
    group: int

    def fill(self, identity: Identity, plan: "Plan") -> Identity:
        """With what it is known by."""
        return structs.replace(identity, party=self.party, group=self.group, lanes=plan.lanes[self.group])


def rank_of(host: "PeerHost") -> Rank | None:
    """Which one it is, if its machine has several."""
    return Rank(host.identity.party, host.identity.group) if host.identity.party.name else None


def bring(theatre: "Theatre") -> str:
    """A machine starts its peers, each in another group; its name, or nothing if the run has one group only."""
    random, groups = theatre.random, theatre.plan.groups
    if groups < 2:
        return ""
    theatre.machines += 1
    number = theatre.machines
    party = Party(f"machine-{number}", random.randint(2, groups), number.to_bytes(32))
    whole = theatre.plan.parties == 1.0
    apart_s = 0.0 if whole else random.choice(APART_S)
    for group in random.sample(range(groups), party.size):
        if random.random() < LACKING and not whole:
            continue
        if apart_s:
            theatre.scheduler.after(random.uniform(0.0, apart_s), theatre.enter, None, None, Rank(party, group))
        else:
            theatre.enter(rank=Rank(party, group))
    return party.name


def claim(theatre: "Theatre", identity: Identity) -> Identity:
    """An enemy says that it is of a party of others. It knows what anybody knows of it: not the key."""
    if not theatre.machines or theatre.random.random() > CLAIMS:
        return identity
    name = f"machine-{theatre.random.randint(1, theatre.machines + 1)}"
    size, key = theatre.random.choice((1, 2, 2, 3)), theatre.random.choice((b"", b"x" * 32))
    group = theatre.random.randrange(theatre.plan.groups)
    return structs.replace(identity, party=Party(name, size, key), group=group, lanes=theatre.plan.lanes[group])


def mates(host: "PeerHost") -> list["PeerHost"]:
    """The other processes of its party that run."""
    party = host.identity.party
    if party.size == 1:
        return []
    return [each for each in host.theatre.peers.values() if each is not host and each.identity.party == party]


def half(host: "PeerHost") -> bool:
    """Some of its party do not run, or never will again."""
    return 1 + sum(not each.frozen_for_good for each in mates(host)) < host.identity.party.size


class Harms(list[str]):
    """What was done to a peer that may cost it its place: the same may cost the rest of its party theirs."""

    def __init__(self, host: "PeerHost") -> None:
        super().__init__()
        self._host = host

    def append(self, what: str) -> None:
        super().append(what)
        for mate in mates(self._host):
            list.append(mate.harms, f"{self._host.name}: {what}")


def with_threads(identity: Identity, most: int) -> Identity:
    """With what the cores of this peer allow; of most machines as many as of any."""
    random = Random(f"threads of {identity.peer}")
    return structs.replace(identity, threads=random.randint(1, most) if random.random() < 0.2 else most)
