"""`pccl top`: a run, live. On a terminal a screen that is drawn again each second; piped, a line whenever it changes.

Owns the terminal. It asks on a connection of its own each time, so a master that was killed and came back is found
again without anything to do here.
"""

import contextlib
import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from pccl.cli.ask import Entrance, find_entrance, in_words, status_of
from pccl.cli.exits import Exit
from pccl.core.status import Status
from pccl.credentials import NOT_PASSED, CertificateSettings
from pccl.net.observing import Unreachable
from pccl.views.status import summary
from pccl.views.top import Line, screen

EVERY_S = 1.0
STYLES = {"title": "bold", "good": "green", "bad": "yellow", "faint": "dim"}


class Watch:
    """What is known of a run, asked again each second."""

    def __init__(self, master: Entrance) -> None:
        self.master = master
        self.status: Status | None = None
        self.trouble = self.since = ""
        """Why there is no newer status, and since when."""
        self._lost_at: float | None = None

    def look(self) -> None:
        """Ask once."""
        try:
            self.status, self.trouble, self._lost_at = status_of(self.master, EVERY_S * 3), "", None
        except Unreachable as error:
            now = time.monotonic()
            self._lost_at = now if self._lost_at is None else self._lost_at
            self.trouble = in_words(self.master, error)
            self.since = f"no answer for {now - self._lost_at:.0f} s, still trying; below is what was known last"

    def lines(self) -> list[Line]:
        """What to show on a terminal."""
        trouble = [self.since, self.trouble] if self.trouble else []
        return screen(str(self.master), self.status, trouble, shutil.get_terminal_size().lines)


def watch(address: str | None, out: TextIO, looks: int = 0, certificates: CertificateSettings = NOT_PASSED) -> int:
    """Show it until Ctrl-C, or so many times."""
    seen = Watch(find_entrance(address, certificates))
    # With NO_COLOR, too: a terminal that is to get no colour may know no other code either.
    plain = not out.isatty() or bool(os.environ.get("NO_COLOR"))
    show = _in_lines(out) if plain else _on_screen(out, _rich())
    with show as draw:
        count = 0
        while not looks or count < looks:
            began = time.monotonic()
            seen.look()
            draw(seen)
            count += 1
            if not looks or count < looks:
                time.sleep(max(0.0, began + EVERY_S - time.monotonic()))
    return Exit.DONE


def _rich() -> Any:
    """The library that colours a terminal, if it is there."""
    try:
        return importlib.import_module("rich.live"), importlib.import_module("rich.text")
    except ImportError:
        return None


Draw = Callable[[Watch], None]


@contextlib.contextmanager
def _in_lines(out: TextIO) -> Any:
    """A line whenever the run is another: for a pipe or a file."""
    last = [""]

    def draw(seen: Watch) -> None:
        line = seen.trouble or (summary(seen.status) if seen.status else "")
        # How long a wait lasts is no news each second.
        if line.partition(", for ")[0] != last[0].partition(", for ")[0]:
            print(line, file=out, flush=True)
        last[0] = line

    yield draw


@contextlib.contextmanager
def _on_screen(out: TextIO, rich: Any) -> Any:
    """The whole screen, drawn again. Names are text of others: they are never read as markup."""
    if rich is None:

        def plain(seen: Watch) -> None:
            width = shutil.get_terminal_size().columns
            body = "\n".join(line.text[:width] for line in seen.lines())
            print(f"\x1b[H\x1b[2J{body}", file=out, flush=True)

        yield plain
        return
    live_module, text_module = rich
    with live_module.Live(auto_refresh=False, screen=True) as live:

        def draw(seen: Watch) -> None:
            text = text_module.Text(no_wrap=True, overflow="ellipsis")
            for line in seen.lines():
                text.append(f"{line.text}\n", STYLES.get(line.style))
            live.update(text, refresh=True)

        yield draw


def main() -> int:
    """For tests: as a process of its own."""
    return watch(sys.argv[1] if len(sys.argv) > 1 else None, sys.stdout)
