"""The network of a stress drill as its parent sees it: doors to be opened, connections to be cut.

Owns the process of the proxy, and what it says. Must not know who is behind a door.
"""

import json
import select
from pathlib import Path
from typing import Any

from tests.stress.child import START_S, Child


class NoNetwork(Exception):
    """The process of the network is gone or hangs."""

    def __init__(self, what: str, log: Path) -> None:
        super().__init__(what)
        self.log = log


class Network:
    """The proxy, `proxy.py`."""

    def __init__(self, logs: Path) -> None:
        self.child = Child("network", logs, ["tests.stress.proxy"], {})
        self._said: list[dict[str, Any]] = []
        try:
            self._expect("ready")
        except BaseException:
            self.child.end()
            raise

    def open(self, door: str) -> int:
        """A new port, which keeps connections waiting until it leads somewhere."""
        self.child.order("open", door=door)
        port: int = self._expect("opened")["port"]
        return port

    def lead(self, door: str, port: int) -> None:
        """Those who dial this door get there."""
        self.child.order("lead", door=door, port=port)

    def shut(self, door: str) -> None:
        """It accepts no more connections. Those that stand end with their processes."""
        self.child.order("shut", door=door)

    def cut(self, **how: object) -> None:
        """Strike a connection; `proxy.Proxy` says how. What was struck is told by `heard`."""
        self.child.order("cut", **how)

    def heard(self) -> list[dict[str, Any]]:
        """Lines that are not the answer to an order; returns at once. Raises `NoNetwork`."""
        if self.child.process.poll() is not None:
            raise NoNetwork(f"the network ended with status {self.child.process.returncode}", self.child.log)
        said = [*self._said, *map(json.loads, self.child.lines() or [])]
        self._said = []
        return said

    def _expect(self, event: str) -> dict[str, Any]:
        while select.select([self.child.stdout], [], [], START_S)[0]:
            lines = self.child.lines()
            if lines is None:
                break
            said: list[dict[str, Any]] = [json.loads(line) for line in lines]
            answer = next((each for each in said if each["event"] == event), None)
            self._said += [each for each in said if each is not answer]
            if answer is not None:
                return answer
        raise NoNetwork(f"the network did not answer within {START_S:g} s", self.child.log)
