"""`pccl master`: a master that prints what it does. Owns what is printed, how signals end it, and that it is secured
unless its user says otherwise."""

import contextlib
import ipaddress
import queue
import signal
import sys
from pathlib import Path

from pccl import MasterNode, UsageError
from pccl.config import MasterConfig
from pccl.credentials import NOT_PASSED, CertificateSettings
from pccl.environment import look_up
from pccl.logs import print_on
from pccl.net.sockets import is_loopback, own_address
from pccl.security.secret import default_path

LOOK_S = 0.5
"""How soon a master that ended by itself is noticed."""


def serve(
    listen: str,
    secret: str | None,
    insecure: bool,
    certificates: CertificateSettings = NOT_PASSED,
) -> int:
    """Serve until SIGINT or SIGTERM; the exit status. `secret`: None if it was not asked for, empty for the usual
    place."""
    # Its `put` may interrupt its `get` in any place: a handler runs in the middle of what the main thread does.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        print_on(sys.stdout)
        certified = any(certificates) or any(map(look_up, ("PCCL_CA", "PCCL_CERT", "PCCL_KEY")))
        if certified and (insecure or secret is not None):
            other = "--insecure" if insecure else "--secret (PCCL_SECRET_FILE)"
            raise UsageError(f"{other} must not stand beside --cert (PCCL_CERT); leave one of them out")
        # With both in the environment `MasterNode` names them.
        file = None if certified else _secret_file(listen, secret, insecure) or ""
        master = MasterNode(listen, secret=file, **certificates._asdict())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: signals.put(number))
        master.run()
    except UsageError as error:
        print(f"pccl master: {error}", file=sys.stderr)
        return 2
    host = host_of(listen)
    print(f"the master listens on {host or 'all addresses'}:{master.port} and waits for peers; Ctrl-C ends it")
    names = ", or at another name in this master's certificate" if certified else ""
    if not certified and (hint := elsewhere(host)):
        print(hint)
    print(f"peers join at: {join_address(host, master)}{names}", flush=True)
    while master.serving:
        with contextlib.suppress(queue.Empty):
            signals.get(timeout=LOOK_S)
            master.interrupt()
            print("the master has ended", flush=True)
            return 0
    print("the master ended because of an internal error", file=sys.stderr)
    return 1


def host_of(listen: str) -> str:
    """The host of a listen address, in which the port may be left out; empty for all addresses."""
    return str(MasterConfig.resolve(listen, {}).listen).rpartition(":")[0]


def join_address(host: str, master: MasterNode) -> str:
    """What a peer's user pastes."""
    return f"pccl://{_reached(host)}:{master.port}{'#' if master.token else ''}{master.token}"


def _reached(host: str) -> str:
    return own_address() if host in ("", "0.0.0.0", "[::]") else host


def elsewhere(host: str) -> str:
    """What to change in the address, where it was guessed and serves some peers only."""
    reached = _reached(host)
    if reached == host or not ipaddress.ip_address(reached).is_private:
        return ""
    where = "on this machine" if is_loopback(reached) else "inside this network"
    return f"the next line is for peers {where}; for others put a name or address that leads here in place of {reached}"


def _secret_file(listen: str, secret: str | None, insecure: bool) -> Path | None:
    """Where the secret lies; None where none is wanted: on loopback unless it was asked for, or if told so."""
    address = MasterConfig.resolve(listen, {}).listen
    asked = look_up("PCCL_SECRET_FILE") if secret is None else secret
    if insecure:
        if secret is not None:
            raise UsageError("--insecure must not stand beside --secret; leave one of them out")
        return None
    if secret is None and not asked and is_loopback(address.host):
        return None
    return Path(asked).expanduser() if asked else default_path(address.port)
