"""`pccl demo`: a master and four real peers that join, one is killed, one comes later, told in words as it happens.

Owns the story and the checks that it went as told. Must not know more than what the processes print.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

PATIENCE_S = 10.0
"""Each event of the story takes well under a second; a machine that needs more than this is not telling the story."""


class StoryFailed(Exception):
    """Something did not happen as told."""


class Actor:
    """A process of the story: its lines arrive in a queue."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.peer = ""
        environment = dict(os.environ)
        # The sources this demo runs from are those that its processes run, installed or not.
        paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def line(self, deadline: float) -> str:
        """The next line; raises `StoryFailed` when none comes."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise StoryFailed(f"{self.name} said nothing for {PATIENCE_S:g} s") from None
        if not line:
            raise StoryFailed(f"{self.name} ended (exit status {self.process.wait()})")
        return line

    def expect(self, event: str, **facts: object) -> dict[str, Any]:
        """Wait for this event with these facts; others before it are passed over."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            said: dict[str, Any] = json.loads(self.line(deadline))
            if said["event"] == "failed":
                raise StoryFailed(f"{self.name} failed: {said['error']}: {said['reason']}")
            if said["event"] == event and all(said[name] == value for name, value in facts.items()):
                return said

    def leave(self) -> None:
        """Ask a peer to say goodbye."""
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
        return f"{self.name} ({self.peer[:8]})" if self.peer else self.name


class Story:
    """The actors on stage, and the voice that tells what they do."""

    def __init__(self, out: IO[str], stage: ExitStack) -> None:
        self._out = out
        self._stage = stage
        self._began = time.monotonic()
        self.address = ""

    def say(self, sentence: str) -> None:
        print(f"[{time.monotonic() - self._began:6.2f} s] {sentence}", file=self._out, flush=True)

    def enter(self, name: str, *arguments: str) -> Actor:
        actor = Actor(name, list(arguments))
        self._stage.callback(actor.end)
        return actor

    def open(self) -> Actor:
        master = self.enter("the master", "pccl.cli", "master", "--listen", "127.0.0.1:0")
        words = master.line(time.monotonic() + PATIENCE_S).split()
        self.address = next(word for word in words if word.startswith("127.0.0.1:"))
        self.say(f"the master listens on {self.address}")
        return master

    def arrive(self, name: str) -> Actor:
        return self.enter(name, "pccl.cli.demo_peer", self.address)

    def accepted(self, peer: Actor) -> None:
        peer.peer = peer.expect("accepted")["peer"]
        self.say(f"{peer} is accepted")

    def together(self, peers: list[Actor]) -> int:
        """Wait until all of them see a ring of exactly them; its epoch."""
        epochs = {peer.expect("epoch", size=len(peers))["epoch"] for peer in peers}
        if len(epochs) != 1:
            raise StoryFailed(f"a ring of {len(peers)} has different epochs: {sorted(epochs)}")
        return int(epochs.pop())


@contextmanager
def _timed() -> Iterator[list[float]]:
    took = [0.0]
    began = time.monotonic()
    yield took
    took[0] = time.monotonic() - began


def tell(out: IO[str]) -> int:
    """Tell the story; the exit status."""
    with ExitStack() as stage:
        story = Story(out, stage)
        try:
            _act(story)
        except StoryFailed as failure:
            story.say(f"THIS DID NOT HAPPEN AS TOLD: {failure}")
            return 1
    return 0


def _act(story: Story) -> None:
    master = story.open()
    ada = story.arrive("Ada")
    story.accepted(ada)
    story.say("the first peer needs nobody's vote; three more come and are candidates until Ada votes for them")
    others = [story.arrive(name) for name in ("Ben", "Cleo", "Dan")]
    for peer in others:
        story.accepted(peer)
    epoch = story.together([ada, *others])
    story.say(f"epoch {epoch}: a ring of 4, the same on every peer")

    ben, cleo, dan = others
    story.say(f"{cleo} is killed (SIGKILL): no goodbye, no clean-up")
    with _timed() as noticed:
        cleo.process.send_signal(signal.SIGKILL)
        epoch = story.together([ada, ben, dan])
    story.say(f"epoch {epoch}: the survivors are a ring of 3, {noticed[0] * 1000:.0f} ms later; nobody restarted")

    story.say("Eve comes late")
    with _timed() as joined:
        eve = story.arrive("Eve")
        story.accepted(eve)
        epoch = story.together([ada, ben, dan, eve])
    story.say(f"epoch {epoch}: a ring of 4 again, {joined[0] * 1000:.0f} ms after her process was started")

    for peer in (ada, ben, dan, eve):
        peer.leave()
    for peer in (ada, ben, dan, eve):
        peer.expect("left")
        story.say(f"{peer} left with a goodbye")
    master.process.send_signal(signal.SIGTERM)
    if master.process.wait(PATIENCE_S) != 0:
        raise StoryFailed(f"the master's exit status is {master.process.returncode}")
    story.say(
        "summary: 5 peers joined, 1 was killed, 4 said goodbye, the ring went from 4 to 3 and back to 4, "
        f"the death was known to all after {noticed[0] * 1000:.0f} ms, the master never stopped"
    )
