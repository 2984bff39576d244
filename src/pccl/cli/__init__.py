"""The command line: `pccl master`, `pccl demo`.

Owns arguments and what is printed. Must not know anything that a user of the library could not.
"""

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status."""
    parser = argparse.ArgumentParser(prog="pccl", description="Collective communication that survives its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    master = commands.add_parser("master", help="decide who is in and which collective runs, until interrupted")
    master.add_argument("--listen", default="0.0.0.0:48148", metavar="HOST:PORT", help="default: %(default)s")
    commands.add_parser("demo", help="a master and real peers on this machine that train, die and come later")
    chosen = parser.parse_args(arguments)
    # Imported when chosen: a master has no use for what the demo needs.
    if chosen.command == "master":
        from pccl.cli.master import serve

        return serve(chosen.listen)
    from pccl.cli.demo.story import tell

    return tell(sys.stdout)
