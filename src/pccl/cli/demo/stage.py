"""The processes of the demo, and what each has said so far.

Owns their start, their lines and their end. Must not know what they play.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pccl

PATIENCE_S = 20.0
"""Each scene takes a second or two; a machine that needs more than this is not telling the story."""


_CREDENTIALS = ("PCCL_MASTER", "PCCL_TOKEN", "PCCL_TOKEN_FILE", "PCCL_SECRET_FILE", "PCCL_CA", "PCCL_CERT", "PCCL_KEY")


class StoryFailed(Exception):
    """Something did not happen as told."""


class Actor:
    """A process of the story, and the latest that it said."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        settings: dict[str, str],
        lines: "queue.SimpleQueue[tuple[Actor, str]]",
    ) -> None:
        self.name = name
        self.said: dict[str, dict[str, Any]] = {}
        """The latest facts by event."""
        # What a user has for a run of their own neither opens this one nor is handed on.
        own = {name: value for name, value in os.environ.items() if name not in _CREDENTIALS}
        environment = {**own, **settings}
        # The sources this demo runs from are those that its processes run, installed or not.
        paths = [str(Path(pccl.__file__).parents[1]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        # The story tells what happens; peers that die and collectives that are tried again are part of it.
        environment.setdefault("PCCL_LOG_LEVEL", "ERROR")
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: "queue.SimpleQueue[tuple[Actor, str]]") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.put((self, line.strip()))
        lines.put((self, ""))

    def fact(self, event: str, name: str, missing: Any = None) -> Any:
        """Of the latest such event; `missing` before the first."""
        return self.said.get(event, {}).get(name, missing)

    @property
    def revision(self) -> int:
        """How many steps its model has behind it."""
        return int(self.fact("step", "revision", 0))

    def end_input(self) -> None:
        """Tell a peer to end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        """Whatever happened, leave no process behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __str__(self) -> str:
        return self.name


class Stage:
    """All actors; hears what they say, one line at a time, and hands each event to a listener."""

    def __init__(self, stack: ExitStack, listener: Callable[[Actor, dict[str, Any]], None]) -> None:
        self._stack = stack
        self._listener = listener
        self._lines: queue.SimpleQueue[tuple[Actor, str]] = queue.SimpleQueue()
        self.dead: list[Actor] = []
        """Whose silence is part of the story."""
        self.settings: dict[str, str] = {}
        """Variables of those that enter from now on."""

    def enter(self, name: str, *arguments: str) -> Actor:
        actor = Actor(name, list(arguments), self.settings, self._lines)
        self._stack.callback(actor.end)
        return actor

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Listen until this has happened; raises `StoryFailed` when it does not."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            try:
                actor, line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise StoryFailed(f"{what}: not within {PATIENCE_S:g} s") from None
            if actor not in self.dead:
                self._hear(actor, line)

    def _hear(self, actor: Actor, line: str) -> None:
        if not line:
            if "left" in actor.said:
                return
            raise StoryFailed(f"{actor} ended (exit status {actor.process.wait()})")
        # A master speaks to people, a peer in JSON.
        said = json.loads(line) if line.startswith("{") else {"event": "line", "words": line}
        if said["event"] == "failed":
            raise StoryFailed(f"{actor} failed: {said['error']}: {said['reason']}")
        actor.said[said["event"]] = said
        self._listener(actor, said)
