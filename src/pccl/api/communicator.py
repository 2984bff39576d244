"""A peer's membership in a run, as the calls that users make.

Owns the `Communicator`: joining, leaving and the shared state; its collectives are in `collectives`. Translates answers
into values and exceptions. Must not know how anything is decided or sent.
"""

import os
from types import TracebackType
from typing import Self, Unpack

from pccl.api.collectives import Collectives
from pccl.api.lane_security import make_lane_security
from pccl.api.membership import GOODBYE_S, Membership, make_data_plane
from pccl.api.pccl_calls import PcclCalls
from pccl.api.shared_state import SharedState, SharedStateSyncInfo, hashed
from pccl.api.sync_call import SyncCall, checked
from pccl.config import PeerConfig, PeerLimitSettings, Places, choose_data_plane, choose_lane_tls, switched_on
from pccl.core.effects.peer_effects import Answer, Failure
from pccl.core.effects.peer_events import ArePeersPending, Request, UpdateTopology
from pccl.core.names import shown
from pccl.core.peer.stages import PeerStage
from pccl.credentials import CertificateSettings
from pccl.dataplane.state.manifest import Holding
from pccl.errors import to_exception
from pccl.logs import configure
from pccl.net.flight import Flight
from pccl.security import tokens
from pccl.security.authority import Authority
from pccl.types import Awaited, PeerId, SharedStateSyncStrategy


class Communicator(Collectives, PcclCalls):
    """One peer of a run: `connect`, work, `close`; also a context manager that does the first and the last.

    `address` is the master's `host:port` (`[IPv6]:port` too), by default that of `PCCL_MASTER`; the port is 48148
    unless another is given. `name` is what people call this peer in log lines and commands, by default its machine and
    process. `party` names the `party_size` peers of this machine, at most 64, that come and go together: they are
    admitted together or not at all, and when one is gone all are. Without it a peer is a party of its own.
    `token` is what the master printed behind the `#` of its join address `pccl://host:port#token`, which may
    be passed as `address` whole: it admits this peer, and nothing is sent to a master that it was not made by. With an
    own CA `ca`, `cert` and `key` take its place: files in PEM, of the CA, and of this peer's certificate and key.
    A host name is looked up at every dial and all its addresses are tried, so that a master which moves to another
    machine behind the same name is found there. Peers of the same `peer_group` reduce together.
    `p2p_connection_pool_size` is the number of lanes to each neighbour; 0 leaves
    it to the group, which then has as many as it takes. `congestion_control` is that of these connections, by default
    the kernel's; `max_upload_mbps` bounds all that this peer sends to others. `lane_threads` is the number of threads
    that may work for one large collective, by default a quarter of the cores and at most 8. `listen` is where
    this peer waits for lanes (`host`, `:port` or `host:port`; by default any address
    and a port that the kernel chooses), `announce` is where others shall dial it, when that is not the same.
    `lane_tls="off"` leaves the bytes between peers with a token in the clear, for private networks: their ends are
    still proved; all peers must have the same. `data_plane` is "native", or "reference" where there is no compiler and
    speed does not matter. `sigterm` says
    whether SIGTERM shall end the process with a goodbye, and `sigusr1` whether SIGUSR1 shall write the flight record to
    stderr, provided that nothing else handles it. `limits` are those of
    `core.limits.PeerLimits`. Each setting but `peer_group` can also come from the environment: see `config`.

    Threads. Calls block; Ctrl-C interrupts the wait. Any number of threads may launch collectives and wait for them,
    in any order, as long as those in flight have different tags and do not share memory; those that find no free lane
    wait. `are_peers_pending` may run beside them. `update_topology` may not: it needs all collectives of this peer to
    be finished, and none may be launched while it waits. `close` may be called at any time, and ends whatever waits.
    Breaking one of these rules raises `UsageError`. A forked child has no part in its parent's Communicator."""

    def __init__(
        self,
        address: str | None = None,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        name: str | None = None,
        party: str | None = None,
        party_size: int | None = None,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        listen: str = "",
        announce: str = "",
        data_plane: str = "",
        lane_tls: str = "",
        congestion_control: str = "",
        max_upload_mbps: float = 0.0,
        lane_threads: int = 0,
        sigterm: bool | None = None,
        sigusr1: bool | None = None,
        **limits: Unpack[PeerLimitSettings],
    ) -> None:
        configure()
        places = Places(listen, announce, name, token, CertificateSettings(ca, cert, key), party, party_size)
        places = places._replace(congestion_control=congestion_control, max_upload_mbps=max_upload_mbps)
        places = places._replace(lane_threads=lane_threads)
        config = PeerConfig.resolve(address, peer_group, p2p_connection_pool_size, places, limits)
        if config.token:
            tokens.parse(config.token)  # What is wrong with it is known before any byte moves.
        own = Authority(config.certificates) if config.certificates is not None else None
        plane, sealed = choose_data_plane(data_plane), choose_lane_tls(lane_tls)
        super().__init__(config, make_data_plane(plane, config.limits.stall_s))
        secured = config.token or own is not None
        self._lane_security = make_lane_security(plane, sealed, own) if secured else None
        self._sigterm = switched_on("sigterm", sigterm)
        self._sigusr1 = switched_on("sigusr1", sigusr1)

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The collector may run this in any thread, the control thread too: nothing here may wait.
        membership = getattr(self, "_membership", None)
        if membership is not None and self._process == os.getpid():
            membership.abandon()

    # ── joining and leaving ──────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, n_attempts: int = 5) -> None:
        """Join the run; returns when this peer is accepted, which takes until the others call `update_topology`.

        Raises `MasterLost` when no master answered in `n_attempts`, `Refused` when it does not admit this peer; after
        either it may be called again."""
        self._check_outside("connect", n_attempts)
        membership = Membership(self._config, self._data_plane, self._lane_security)
        try:
            answer = membership.connect(n_attempts, self._sigterm, self._sigusr1)
        except BaseException:
            membership.abandon()
            raise
        if isinstance(answer, Failure):
            # Out before it was in: what is left of it goes, so that the next connect starts from nothing.
            membership.leave(GOODBYE_S)
            raise to_exception(answer)
        self._membership = membership
        self._learn_size()

    def close(self) -> None:
        """Leave the run, if this peer is in it. Never hangs, and may be called again."""
        self._check_process()
        self._closed = True
        if self._membership is not None:
            self._membership.leave(GOODBYE_S)

    # ── calls of all peers ───────────────────────────────────────────────────────────────────────────────────────────

    def update_topology(self) -> None:
        """Admit the candidates that wait. Returns when all accepted peers have called it and the new ring stands."""
        _value(self._connected("update_topology").call_alone("update_topology", UpdateTopology()))
        self._learn_size()

    def are_peers_pending(self) -> bool:
        """Do candidates wait to be admitted? All accepted peers must ask, and all get the same answer."""
        return bool(self._call("are_peers_pending", ArePeersPending()))

    # ── shared state ─────────────────────────────────────────────────────────────────────────────────────────────────

    def prefetch_shared_state(self, shared_state: SharedState, n_attempts: int = 5) -> SharedStateSyncInfo:
        """Before `connect`: fetch what the group holds while it trains on, so that the first sync has little to bring.

        No peer waits for this one meanwhile. It pulls what the last sync agreed on from a few of those who held it,
        each of which gives no more bandwidth than its `serve_bytes_s`; what they have changed since is left out.
        `rx_bytes` says how much came: 0 if no peer has anything to give. The state is not in step afterwards but
        `torn`, unless nothing of that was of use, and its revision stays as it is: `connect` and `sync_shared_state`
        fetch the rest.

        Raises `SyncFailed` when every holder was lost: what came is kept, so call it again or connect. Raises
        `CallMismatch` if the entries differ from the group's, and what `connect` raises."""
        self._check_outside("prefetch_shared_state", n_attempts)
        manifest, entries = hashed(checked(shared_state, "prefetch_shared_state"))
        membership = Membership(self._config, self._data_plane, self._lane_security)
        try:
            answer, traffic = membership.visit(n_attempts, Holding(entries, manifest))
        except BaseException:
            shared_state.interrupted(membership.pulled)
            raise
        finally:
            membership.leave(GOODBYE_S)
        if membership.pulled:
            # Chunks of the group's between our own: until a sync has brought the rest no peer may be given this.
            shared_state.interrupted(True)
        _value(answer)
        return SharedStateSyncInfo(traffic.sent_bytes, traffic.received_bytes)

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
    ) -> SharedStateSyncInfo:
        """Make sure that all peers of this group hold the same state, and let those that do not have it.

        All of them call it, with no collective unfinished. The highest revision wins, among equals the most popular
        content; but once the group has agreed on a revision, and a peer still holds that or the next one, what is
        higher comes from another history and cannot win. A peer that lacks what was elected pulls it from those that
        have it, and `revision` is set to the elected one. For a peer in step `rx_bytes` is 0. Tensors must
        not be written while it runs.

        When a peer did not get it, or the master was lost in the middle, it is tried again here, up to four times in
        all, and only what is missing is fetched. Raises `SyncFailed` when that was not enough, or when the only holder
        was lost. A failed call leaves each chunk of 4 MiB of a tensor either as it was or as elected. Raises
        `CallMismatch` for a peer whose entries differ from the elected ones in name, type or length; others go on; and
        for all peers if some pass `ENFORCE_POPULAR` and others do not. After Ctrl-C the same call may be made again: it
        takes the place of the one that was interrupted."""
        membership = self._connected("sync_shared_state")
        return SyncCall(membership, checked(shared_state, "sync_shared_state"), strategy).run()

    # ── what is known ────────────────────────────────────────────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        me, membership = shown(self.name), self._membership
        if membership is None or self._closed:
            return f"<Communicator {me}: {'closed' if self._closed else 'not connected'}, master {self._config.master}>"
        return (
            f"<Communicator {membership.core.names.full(membership.core.identity.peer)}: {membership.account.place()}>"
        )

    @property
    def name(self) -> str:
        """What people call this peer."""
        return self._config.name

    def name_of(self, peer: str) -> str:
        """What people call a peer of this run, as in every sentence: `name (id8)`, or `id8` if it has no name."""
        return self._connected("name_of").core.names.full(PeerId(peer))

    @property
    def party(self) -> str:
        """To which this peer belongs; empty if it is one of its own."""
        return self._config.party

    def party_of(self, peer: str) -> str:
        """The party of a peer that is or was in this group, such as one of `ReduceInfo.peers`: one text for each party,
        by which peers of all groups know it. For a peer without a party that is its id."""
        return self._connected("party_of").core.parties.get(PeerId(peer), peer)

    def metrics(self) -> dict[str, float]:
        """Numbers for a dashboard, flat: `wandb.log(comm.metrics())`. Counters end in `_total` and never fall; others
        are of this moment, or of the last round. Never waits."""
        return self._connected("metrics").metrics()

    def flight_record(self) -> tuple[Flight, ...]:
        """The last 256 collectives of this peer, the latest last: parameters, times, for whom each waited, how it
        ended. Never waits."""
        return self._connected("flight_record").account.flight_record()

    @property
    def awaited(self) -> Awaited | None:
        """The call in which others wait for this peer, and for how long; None if there is none. The master says so
        within two seconds (`explain_after_s`): a peer that computes for long can decide to be brief. Never waits."""
        return self._connected("awaited").awaited()

    @property
    def is_out(self) -> bool:
        """This peer was put out of the run, or has left it: the next call raises why. Never waits."""
        return self._closed or self._connected("is_out").core.stage is PeerStage.GONE

    @property
    def world_size(self) -> int:
        """Peers that reduce together: those of this group, in the present epoch. Never waits."""
        return self._connected("world_size").group_size

    @property
    def peer_id(self) -> PeerId:
        """Who this peer is for the duration of its membership."""
        return self._connected("peer_id").core.identity.peer

    @property
    def epoch(self) -> int:
        """The number of the present roster and ring."""
        return self._connected("epoch").core.epoch

    @property
    def ring(self) -> tuple[PeerId, ...]:
        """The peers of this group in ring order."""
        return self._connected("ring").core.ring

    @property
    def rank(self) -> int:
        """This peer's place in the ring of the present epoch; not an identity: it changes with the ring."""
        core = self._connected("rank").core
        return core.ring.index(core.identity.peer)

    def _call(self, call: str, request: Request) -> Answer:
        return _value(self._connected(call).call(request))


def _value(answer: Answer) -> Answer:
    if isinstance(answer, Failure):
        raise to_exception(answer)
    return answer
