"""The command line: `pccl master`, `status`, `top`, `doctor`, `kick`, `token`, `demo`, `config`, `version`.

Owns arguments, what is printed and exit codes. Must not know anything that a user of the library could not.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from pccl.cli.exits import Exit

EXAMPLES = """\
examples:
  pccl master                          serve a run on port 48148, until Ctrl-C
  PCCL_MASTER=alpha pccl status        is it healthy, and whom does it wait for?
  pccl doctor alpha:48148              what would keep a peer on this machine from joining, and the fix

exit codes: 0 done, 1 broke, 2 usage, 3 waiting for a peer, 4 unreachable, 130 interrupted
ADDRESS is the master's host:port; by default that of PCCL_MASTER, and port 48148
"""


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    made = argparse.ArgumentParser(
        prog="pccl",
        description="Collective communication that survives its peers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="store_true", help="the same as the command version")
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    master = commands.add_parser("master", help="decide who is in and which collective runs, until interrupted")
    master.add_argument("--listen", default="0.0.0.0:48148", metavar="HOST:PORT", help="default: %(default)s")
    master.add_argument("--secret", nargs="?", const="", metavar="FILE", help="the master's secret, made if missing")
    master.add_argument("--insecure", action="store_true", help="no secret: all who reach the port may do all")
    _certificates(master)
    status = commands.add_parser("status", help="one look at a run: exit code 3 if it waits for a peer")
    _address(status)
    _json(status)
    _address(commands.add_parser("top", help="a run, live"))
    doctor = commands.add_parser("doctor", help="what would go wrong on this machine, and the fix; it never joins")
    _address(doctor)
    _json(doctor)
    kick = commands.add_parser("kick", help="put a peer out of a run; it and the others are told why")
    kick.add_argument("peer", metavar="PEER", help="its name, its id, or how its id begins")
    kick.add_argument("--reason", default="", metavar="WORDS", help="what the peer's exception and all logs have")
    _address(kick)
    _token(commands.add_parser("token", help="who may come in: new, revoke, list"))
    commands.add_parser("demo", help="a master and real peers on this machine that train, die and come later")
    config = commands.add_parser("config", help="what a compiler needs for programs in C")
    for flag, prints in (("cflags", "for compiling"), ("libs", "for linking"), ("cmakedir", "for CMake's pccl_DIR")):
        config.add_argument(f"--{flag}", action="store_true", help=prints)
    commands.add_parser("version", help="what is installed")
    return made


def _token(token: argparse.ArgumentParser) -> None:
    actions = token.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="print a new token")
    new.add_argument("--role", choices=("peer", "observer", "operator"), default="peer", help="default: %(default)s")
    new.add_argument("--expires", default="never", metavar="SPAN", help="like 12h or 7d; default: %(default)s")
    new.add_argument("--brings-state", action="store_true", help="it may replace the state that the run has agreed on")
    revoke = actions.add_parser("revoke", help="admit no connection with these tokens any more")
    revoke.add_argument("ids", nargs="+", metavar="ID")
    for action in (new, revoke, actions.add_parser("list", help="all tokens by id")):
        action.add_argument("--secret", metavar="FILE", help="of the master; default: PCCL_SECRET_FILE, or by --port")
        action.add_argument("--port", type=int, default=0, help="of the master; default: 48148")


def _address(command: argparse.ArgumentParser) -> None:
    command.add_argument("address", nargs="?", metavar="ADDRESS", help="the master's host:port; default: PCCL_MASTER")
    _certificates(command)


def _certificates(command: argparse.ArgumentParser) -> None:
    for name, what in (("ca", "of an own CA, instead of tokens"), ("cert", "of this process"), ("key", "of --cert")):
        command.add_argument(f"--{name}", metavar="FILE", help=f"{what}, in PEM; default: PCCL_{name.upper()}")


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="one JSON object")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status."""
    made = parser()
    chosen = made.parse_args(arguments)
    if chosen.command is None and not chosen.version:
        made.print_help()
        return Exit.DONE
    try:
        return _run(chosen)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away; Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKE


def _run(chosen: argparse.Namespace) -> int:
    """Imported when chosen: a master has no use for what the demo needs."""
    from pccl.credentials import CertificateSettings
    from pccl.errors import UsageError

    files = [getattr(chosen, name, None) for name in CertificateSettings._fields]
    certificates = CertificateSettings(*files)
    try:
        match chosen.command:
            case "master":
                from pccl.cli.master import serve

                return serve(chosen.listen, chosen.secret, chosen.insecure, certificates)
            case "status":
                from pccl.cli.status import look

                return look(chosen.address, chosen.json, sys.stdout, certificates)
            case "top":
                from pccl.cli.top import watch

                return watch(chosen.address, sys.stdout, certificates=certificates)
            case "doctor":
                from pccl.cli.doctor import examine

                return examine(chosen.address, chosen.json, sys.stdout, certificates)
            case "kick":
                from pccl.cli.kick import kick

                return kick(chosen.peer, chosen.reason, chosen.address, sys.stdout, certificates)
            case "token":
                return _run_token(chosen)
            case "config":
                from pccl.cli.config import tell as tell_config

                wanted = {flag: getattr(chosen, flag) for flag in ("cflags", "libs", "cmakedir")}
                return tell_config(wanted, sys.stdout, sys.stderr)
            case "demo":
                from pccl.cli.demo.story import tell

                return tell(sys.stdout)
    except UsageError as error:
        print(f"pccl {chosen.command}: {error}", file=sys.stderr)
        return Exit.USAGE
    from pccl.cli.version import tell as tell_version

    return tell_version(sys.stdout)


def _run_token(chosen: argparse.Namespace) -> int:
    from pccl.cli import token

    secret = token.find_secret(chosen.secret, chosen.port)
    match chosen.action:
        case "new":
            return token.make(secret, chosen.role, chosen.expires, chosen.brings_state, sys.stdout)
        case "revoke":
            return token.revoke(secret, chosen.ids, sys.stdout)
    return token.show(secret, sys.stdout)
