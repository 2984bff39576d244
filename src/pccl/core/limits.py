"""The bounds on waiting, each with its reason. Pure data: `config.py` fills it from arguments and environment."""

from msgspec import Struct

LATE_S = 1.0
"""An event later than this after a deadline means that this process stood still: stopped, starved, or the GIL held.
What others sent meanwhile is still unread, so all deadlines are moved before a peer is judged by them."""


PINGS_PER_LIMIT = 5
"""Pings before a silence is judged, by master and peers alike: one lost to a stall or two is no verdict."""


PARTY_SIZE_MAX = 64
"""Peers of one machine: as many as may wait at one address (`address_candidates_max`), or a party could never be
complete. Machines have eight or sixteen devices."""

THREADS_MAX = 16
"""Of a peer for one collective: about what 100 Gbit/s under TLS take (docs/tuning.md)."""


class MasterLimits(Struct, frozen=True):
    """What the master's core waits for, at most."""

    silence_s: float = 60.0
    """An accepted peer that others wait for and that answers no ping for this long is kicked.

    Pings are answered by the peer's control thread, which needs the GIL for a millisecond. A C extension that holds
    the GIL (a large copy, a compile, a deserialisation) freezes that thread for seconds, rarely tens of them; a minute
    without one free millisecond is a stopped process or a dead network. A trainer that merely computes for an hour
    answers every ping and is never kicked."""

    candidate_silence_s: float = 10.0
    """The same for a candidate under trial. It sits in `connect` with nothing else to do, so ten seconds are plenty,
    and the whole roster waits for it meanwhile."""

    vote_timeout_s: float = 0.0
    """An accepted peer whose vote others have waited for this long is kicked, though it answers every ping. 0 for no
    such limit, which is the default: only the one who trains knows how long a step may take. Waits are told to the
    peers and to the operator anyway, who can put a peer out by hand (`pccl kick`)."""

    link_timeout_s: float = 10.0
    """A link that does not stand at both ends after this counts as failed in the direction it was dialled. Dialling
    takes at most `PeerLimits.dial_timeout_s`; the rest is the way of the messages around it."""

    redial_s: float = 1.0
    """Pause before a link that failed in both directions is dialled again: no spinning, yet short against training."""

    avoid_s: float = 300.0
    """For this long a ring is built around a pair of peers that could not reach each other. Routes change by the
    minute, so the verdict must not outlive them."""

    undecided_s: float = 300.0
    """Of two accepted peers that cannot reach each other, around which no ring goes, and of which neither has trouble
    with more others, the younger is kicked after this; until then both stay, and the operator reads of them. Either of
    the two may be lying, so this is long: a liar needs five minutes for each peer, and is named all the while. 0 for
    never: a run that is watched can wait for its operator, one that is not must not stand still for ever."""

    reunion_s: float = 5.0
    """After a restart: how long the master waits for missing peers to which no returned peer has a link. Peers dial
    every second (`PeerLimits.master_redial_s`), and a dial takes two at most, so one that is there has come by then. A
    missing peer to which a returned one still has a link, or of whose group no peer has returned, may not have noticed
    yet that its master is gone, and gets `silence_s`, like everywhere. The last peer of a run has as long to come back
    before newcomers begin another one."""

    newborn_s: float = 2.5
    """A master that may follow another one on its port keeps newcomers waiting until it is this old: by then peers of
    an earlier run, which dial every second, have sent their first message, and the newcomer does not begin a run beside
    theirs. A dial that was under way when this master started may take two seconds (`peer/masters.py`). With a secret a
    run that comes back goes on this long after its first peer did, for the same reason: one that knows better has come
    by then (`recovery/gathering.py`)."""

    explain_after_s: float = 2.0
    """A wait is put into words for the operator and for those who wait after this; shorter ones are normal."""

    default_lanes: int = 4
    """Lanes per link when no peer of the group asked for a number: a few concurrent collectives get one each, and one
    large tensor gets past the loss-limited rate of a single TCP connection."""

    mesh_peers_max: int = 8
    """In groups of up to this many every two peers are linked, not only neighbours: small tensors then travel straight
    to all others, and a ring that has lost a member is closed by a link that stands already. Connections grow with the
    number of peers: beyond a handful they cost more than they bring."""

    mesh_lanes_max: int = 8
    """No mesh where links have more lanes than this: seven links of more would use up a process's descriptors."""

    spare_redial_s: float = 60.0
    """Pause before a link for which no peer waits is dialled again after it failed from both ends."""

    peers_max: int = 4096
    """Candidates and accepted peers together. One process serves a thousand votes in well under a second; beyond a few
    thousand connections file descriptors run out first."""

    candidates_max: int = 1024
    """Of these, candidates that wait at a time: a fleet of a thousand may come at once, and members keep three quarters
    of the places."""

    address_candidates_max: int = 64
    """Of these, from one address other than the master's own machine: a site behind one router, with eight machines of
    eight peers each."""

    tags_max: int = 4096
    """Collectives one peer may have in flight: far above any model's parameter tensors sent one by one."""


class PeerLimits(Struct, frozen=True):
    """What a peer's core waits for, at most."""

    master_silence_s: float = 60.0
    """While a call waits, the master is asked for a sign of life; this long without one and the master is lost.
    Same argument as `MasterLimits.silence_s`: the master may live in a busy process too."""

    master_timeout_s: float = 300.0
    """A peer that has lost its master dials it again for this long. A process is restarted in seconds and a machine
    in a few minutes; then an operator has to come, and every minute of waiting is one of all the others' machines."""

    master_redial_s: float = 1.0
    """The longest pause between two dials to the master. A thousand peers are a thousand refused
    connections a second, which a machine does not feel; and training stands still meanwhile."""

    dial_timeout_s: float = 5.0
    """Connect and handshake of one lane. SYN is sent again after 1 s and 3 s, so two losses fit in."""

    lanes_max: int = 2048
    """Lanes of all links that the master may ask for at once; or eight links of as many as this peer asks for, if that
    is more. A peer of a mesh of eight that serves 64 others has some 640. Without a bound one message of a false
    master would make a peer open millions of connections to anywhere."""

    early_offer_s: float = 10.0
    """A neighbour may dial before our own `Wire` message has arrived; its offer is kept this long, which is longer than
    it waits itself."""

    early_offers_max: int = 1024
    """Offers kept at once: as many as lanes of the largest link."""

    stall_s: float = 60.0
    """A collective in which no byte moves in either direction for this long, or too few (`dataplane/patience.py`), has
    failed on this peer. TCP itself repairs what can be repaired in less; after that the route is dead or the
    neighbour's process stands still, which the master judges by the same measure."""
