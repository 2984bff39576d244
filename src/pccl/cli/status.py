"""`pccl status`: one look at a run."""

import sys
from typing import TextIO

import msgspec

from pccl.cli.ask import find_entrance, in_words, status_of
from pccl.cli.exits import Exit
from pccl.credentials import NOT_PASSED, CertificateSettings
from pccl.net.observing import Unreachable
from pccl.views import status as view


def look(address: str | None, as_json: bool, out: TextIO, certificates: CertificateSettings = NOT_PASSED) -> int:
    """Print what the run is at this moment; the exit status says whether it is healthy."""
    master = find_entrance(address, certificates)
    try:
        status = status_of(master)
    except Unreachable as error:
        print(f"pccl status: {in_words(master, error)}", file=sys.stderr)
        return Exit.UNREACHABLE
    well = view.healthy(status)
    if as_json:
        facts = {**msgspec.to_builtins(status), "healthy": well, "health": view.health(status)}
        facts.pop("type", None)
        print(msgspec.json.encode(facts).decode(), file=out)
    else:
        print("\n".join(view.lines(status)), file=out)
    return Exit.DONE if well else Exit.WAITING
