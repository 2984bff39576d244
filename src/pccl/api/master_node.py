"""The master as an object: `run` serves in a thread until `interrupt`.

Owns the master's thread. Must not know how anything is decided or sent.
"""

import logging
import os
import secrets
import time
from types import TracebackType
from typing import Self, Unpack

from pccl.config import MasterConfig, MasterLimitSettings
from pccl.core.master.master import Master
from pccl.core.master.tickets import NO_KEYS, Keys
from pccl.credentials import CertificateSettings
from pccl.errors import UsageError
from pccl.logs import Teller, configure
from pccl.net.bounds import Bounds
from pccl.net.master_shell import MasterShell
from pccl.net.sockets import in_words, is_loopback
from pccl.net.thread import LoopEnded, LoopThread
from pccl.release import release
from pccl.security.audit import Audit
from pccl.security.authority import Authority
from pccl.security.certified import CertifiedDoor
from pccl.security.control import Door, Doorway
from pccl.security.ledger import Ledger
from pccl.security.secret import load_or_make

log = logging.getLogger("pccl.master")

STOP_S = 5.0
"""`interrupt` waits this long for the thread to end; closing sockets takes milliseconds."""


class MasterNode:
    """Decides who is in and which collective runs; never touches a tensor. Also a context manager.

    `listen_address` is `host:port`, `[IPv6]:port` or `:port` for all addresses; port 0 lets the kernel choose, and
    `port` tells. `secret` (`PCCL_SECRET_FILE`) is the file of the master's secret, which is made if it is not there:
    then all connections are sealed, and only peers with a token of it are let in (`token`). With an own CA `ca`, `cert`
    and `key` take its place: files in PEM, of the CA, and of this master's certificate and key. `limits` are those of
    `core.limits.MasterLimits`, each of which can also come from the environment.

    The thread is no daemon: a script that builds a master, calls `run` and ends goes on serving until it is killed."""

    def __init__(
        self,
        listen_address: str = "0.0.0.0:48148",
        *,
        secret: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        **limits: Unpack[MasterLimitSettings],
    ) -> None:
        configure()
        certificates = CertificateSettings(ca, cert, key)
        self._config = MasterConfig.resolve(listen_address, limits, secret, certificates)
        self._door = _door(self._config)
        self._process = os.getpid()
        self._thread: LoopThread | None = None
        self._shell: MasterShell | None = None
        self._core: Master | None = None
        self._addresses: list[tuple[str, int]] = []

    def __enter__(self) -> Self:
        self.run()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupt()

    def run(self) -> None:
        """Listen and serve in the background; returns at once."""
        self._check_process()
        if self._thread is not None:
            raise UsageError("run: this MasterNode runs already, or did; build a new one")
        thread = LoopThread("pccl-master", daemon=False)
        try:
            thread.run(self._open())
        except OSError as error:
            thread.stop()
            raise UsageError(f"listen_address: cannot listen on {self._config.listen}: {in_words(error)}") from error
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    async def _open(self) -> None:
        # On a port that was chosen there may have been a master before, whose peers come back.
        self._core = self._new_core(follows=self._config.listen.port != 0)
        bounds = Bounds(self._config.connection_dead_s)
        self._shell = MasterShell(self._core, bounds, Teller("master", self._facts), self._start_over, self._door)
        self._shell.open(self._config.listen.host, self._config.listen.port)
        self._shell.be_born()
        self._addresses = self._shell.addresses

    def _new_core(self, follows: bool) -> Master:
        clock_s = time.time() - time.monotonic()
        keys = Keys(self._door.link_key, self._door.sign, clock_s) if self._door is not None else NO_KEYS
        return Master(secrets.token_hex(8), self._config.limits, follows, release(), keys)

    def _start_over(self, error: Exception) -> None:
        """The core raised, and not at a message that one peer could be blamed for: what it knows is not to be trusted.
        The peers know it all, as after a crash of this process; they need not wait until it has been started again."""
        if self._shell is not None:
            self._core = self._new_core(follows=True)
            self._shell.start_over(self._core)

    def interrupt(self) -> None:
        """Stop serving; the port is free when this returns. May be called again."""
        self._check_process()
        if self._thread is not None and self._shell is not None:
            self._thread.post(self._shell.stop)
            self._thread.stop()
            if not self._thread.join(STOP_S):
                log.warning("the master's thread has not ended within %g s", STOP_S)

    @property
    def serving(self) -> bool:
        """True from `run` to `interrupt`."""
        return self._thread is not None and self._thread.alive

    @property
    def port(self) -> int:
        """The port that this master listens on."""
        if not self._addresses:
            raise UsageError("port: call run first")
        return self._addresses[0][1]

    @property
    def token(self) -> str:
        """What admits a peer to this master, and pins its key; empty without a secret."""
        return self._door.first_token().text() if isinstance(self._door, Door) else ""

    def explain(self) -> tuple[str, ...]:
        """What the run waits for, and on whom: one sentence for each wait."""
        self._check_process()
        if self._thread is None or self._core is None:
            raise UsageError("explain: call run first")
        try:
            return self._thread.run(self._explain(self._core))
        except LoopEnded:
            return ()

    def _facts(self) -> dict[str, object]:
        """What all lines of this master have in common."""
        core = self._core
        return {} if core is None else {"run": core.lead.run, "epoch": core.roster.epoch or None}

    async def _explain(self, core: Master) -> tuple[str, ...]:
        return core.explain()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this MasterNode belongs to the process that built it, not to its forked children")


def _door(config: MasterConfig) -> Doorway | None:
    """What keeps strangers out, if there is a secret or a certificate."""
    if config.secret_file is not None:
        secret = config.secret_file
        return Door(load_or_make(secret), Ledger.beside(secret), Audit.beside(secret))
    if config.certificates is not None:
        return CertifiedDoor(Authority(config.certificates), Audit.of_port(config.listen.port))
    if not is_loopback(config.listen.host):
        log.warning(
            "NOT SECURED: this master has no secret, so every machine that reaches %s can join, read and replace the "
            "model, and end the run; set PCCL_SECRET_FILE, or start it with `pccl master`",
            config.listen,
        )
    return None
