"""A process that a stress drill starts: its orders, its lines, its log.

Owns starting, hearing and ending one. Must not know what it is for.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pccl

START_S = 60.0
"""A process that has not said its first word by then: a start takes a fraction of a second, ten times as long on a busy
machine."""


class Child:
    """A process, its lines, and the file with all that it logs."""

    def __init__(self, name: str, logs: Path, arguments: list[str], settings: dict[str, str]) -> None:
        self.name = name
        self.log = logs / f"{name.replace(' ', '-')}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")}
        # Its processes use the same pccl and the same tool as this process, wherever they are installed.
        paths = [str(Path(pccl.__file__).parents[1]), str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment.update(settings)
        self.log.write_bytes(b"")
        # Appended to: the parent adds to the log of a master what that prints, and neither shall overwrite the other.
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends them all.
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self._rest = b""

    def lines(self) -> list[str] | None:
        """Those that have come; None at the end of its output."""
        try:
            data = os.read(self.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in whole]

    def order(self, name: str, **facts: object) -> None:
        """Tell it to do something; one that is dead does not hear it, which shows elsewhere."""
        with suppress(BrokenPipeError):
            self._stdin.write((json.dumps({"do": name, **facts}) + "\n").encode())
            self._stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Whatever happened, leave no process behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.stdout.close()
        with suppress(BrokenPipeError):  # an order that it did not live to read
            self._stdin.close()
