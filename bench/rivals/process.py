"""A process of one rival: connects to the bench's control socket, then does what it is told until that closes.

python -m rivals.process <library> <control socket> <settings as JSON>
"""

import json
import resource
import socket
import sys
import threading
import time
from typing import Any, TextIO

import numpy as np

from rivals.rival import Facts, Rival


class HotPython:
    """A thread that holds the GIL as much as a thread can, while it is told to."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._wanted = threading.Event()
        threading.Thread(target=self._burn, daemon=True).start()

    def switch(self, on: bool) -> None:
        if on:
            self._wanted.set()
        else:
            self._wanted.clear()

    def _burn(self) -> None:
        number = 1
        while self._wanted.wait():
            for _ in range(2000):
                number = (number * 1103515245 + 12345) & 0x7FFFFFFF
            self.cpu_s = time.thread_time()


def make(library: str, settings: Facts) -> Rival:
    """Imported when chosen: a bench needs only what it compares."""
    match library:
        case "ours":
            from rivals.ours import Ours

            return Ours(settings)
        case "gloo":
            from rivals.gloo import Gloo

            return Gloo(settings)
        case "limit":
            from rivals.limit import Limit

            return Limit(settings)
        case _:
            from rivals.mpi import OpenMpi

            return OpenMpi(settings)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Told:
    """Carries out the commands."""

    def __init__(self, rival: Rival, size: int) -> None:
        self._rival = rival
        self._size = size
        self._hot = HotPython()
        self._values = np.zeros(0, np.float32)

    def prepare(self, nbytes: int) -> Facts:
        """Memory for a size, and one all-reduce whose values are looked at."""
        self._values = np.full(nbytes // 4, 1.0 + self._rival.rank, np.float32)
        started = time.perf_counter()
        self._rival.all_reduce(self._values)
        first_s = time.perf_counter() - started
        expected = self._size * (self._size + 1) / 2
        right = not getattr(self._rival, "sums", True) or bool(np.all(self._values == expected))
        # Sums of zeros stay zeros, however often they are summed.
        self._values.fill(0.0)
        if (fill := getattr(self._rival, "fill", None)) is not None:
            fill(self._values)
        return {"right": right, "first_s": first_s}

    def run(self, repetitions: int, hot: bool, together: bool) -> Facts:
        self._hot.switch(hot)
        if together:  # So that nobody's first repetition waits for whoever was told last.
            self._rival.all_reduce(self._values)
        before = cpu_seconds() - self._hot.cpu_s
        seconds = []
        for _ in range(repetitions):
            started = time.perf_counter()
            self._rival.all_reduce(self._values)
            seconds.append(time.perf_counter() - started)
        cpu_s = cpu_seconds() - self._hot.cpu_s - before
        self._hot.switch(False)
        return {"seconds": seconds, "cpu_s": cpu_s}


def obey(rival: Rival, size: int, control: TextIO) -> None:
    def tell(facts: Facts) -> None:
        control.write(json.dumps(facts) + "\n")
        control.flush()

    def heard() -> Any:
        line = control.readline()
        return json.loads(line) if line else None

    tell({"rank": rival.rank, "offer": rival.offer()})
    offers = heard()
    if offers is None:
        return
    tell(rival.connect(offers))
    told = Told(rival, size)
    while (command := heard()) is not None:
        if "prepare" in command:
            tell(told.prepare(command["prepare"]))
        elif "look" in command:
            look = getattr(rival, "look", None)
            tell({} if look is None else look())
        else:
            tell(told.run(command["run"], command["hot"], command["together"]))
    rival.close()


def main() -> None:
    library, path, words = sys.argv[1:]
    settings = json.loads(words)
    rival = make(library, settings)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        with sock.makefile("rw") as control:
            obey(rival, int(settings["size"]), control)


if __name__ == "__main__":
    main()
