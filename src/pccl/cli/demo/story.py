"""`pccl demo`: a master and four real peers train a model; one is killed, two come later; told in words as it happens.

Owns the story and the checks that it went as told. Must not know more than what the processes print.
"""

import math
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import IO, Any

from pccl.cli.demo.stage import PATIENCE_S, Actor, Stage, StoryFailed

SCENE_STEPS = 60
"""Between two events: one or two seconds, enough to see the loss go on falling."""

SHOWN_STEPS = 20
"""A line about the loss every so many steps."""

FALLEN = 4.0
"""The loss must end below its beginning by at least this factor; it is tens as a rule."""

BAR_LEAST, BAR_PER_DECADE = 1e-3, 10
"""The bar of a loss is logarithmic, and empty at this one."""


class Story:
    """The voice that tells what the actors do, and what it noticed meanwhile."""

    def __init__(self, out: IO[str], stack: ExitStack) -> None:
        self._out = out
        self._began = time.monotonic()
        self.stage = Stage(stack, self._heard)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pccl-demo-")))
        secret = str(folder / "secret")
        self.master = self.stage.enter(
            "the master", "pccl.cli", "master", "--listen", "127.0.0.1:0", "--secret", secret
        )
        self.stage.until(lambda: "pccl://" in self.master.fact("line", "words", ""), "the master starts")
        self.join_address = self.master.said["line"]["words"].split()[-1]
        self.address, _, token = self.join_address.removeprefix("pccl://").partition("#")
        # In a file: arguments and variables of a process are there for others to read.
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(token)
        self.stage.settings["PCCL_TOKEN_FILE"] = str(folder / "token")
        self.peers: list[Actor] = []
        """Those that train now."""
        self.steps_s: list[float] = []
        """What each step of each peer took since this was last emptied."""

    def say(self, sentence: str = "") -> None:
        print(f"[{time.monotonic() - self._began:5.2f} s] {sentence}".rstrip(), file=self._out, flush=True)

    def _heard(self, actor: Actor, said: dict[str, Any]) -> None:
        if said["event"] == "step":
            self.steps_s.append(said["took_s"])
            if actor is self.peers[0] and said["revision"] % SHOWN_STEPS == 0:
                self.say(
                    f"    step {said['revision']:4}   ring of {said['size']}   loss {said['loss']:8.4f}  {bar(said)}"
                )

    def arrive(self, *names: str) -> list[Actor]:
        """Start peers, and wait until they train with all others; they come with random weights at revision 0."""
        newcomers = [self.stage.enter(name, "pccl.cli.demo.peer", self.address) for name in names]
        self.peers += newcomers
        self.stage.until(lambda: all("synced" in each.said for each in newcomers), f"{' and '.join(names)} join")
        size = len(self.peers)
        self.stage.until(lambda: all(each.fact("step", "size") == size for each in self.peers), f"a ring of {size}")
        return newcomers

    def describe(self, newcomer: Actor) -> None:
        synced, own = newcomer.said["synced"], newcomer.said["accepted"]
        self.say(
            f"{newcomer} joined with random weights (revision 0, loss {own['loss']:.4f}) and received "
            f"{synced['received_bytes']:,} bytes: revision {synced['revision']}, loss {synced['loss']:.4f}"
        )

    def train(self, steps: int) -> None:
        """Let some steps pass."""
        target = self.peers[0].revision + steps
        self.stage.until(lambda: self.peers[0].revision >= target, f"step {target}")

    def kill(self, victim: Actor) -> float:
        """End a peer without warning; the longest step of any survivor around it."""
        self.peers.remove(victim)
        self.stage.dead.append(victim)
        self.steps_s.clear()
        victim.process.send_signal(signal.SIGKILL)
        size = len(self.peers)
        self.stage.until(lambda: all(each.fact("step", "size") == size for each in self.peers), "the survivors go on")
        return max(self.steps_s)

    def finish(self) -> None:
        """Have all peers end after one and the same step, and say goodbye."""
        for peer in self.peers:
            peer.end_input()
        self.stage.until(lambda: all("left" in each.said for each in self.peers), "all say goodbye")
        self.master.process.send_signal(signal.SIGTERM)
        if self.master.process.wait(PATIENCE_S) != 0:
            raise StoryFailed(f"the master's exit status is {self.master.process.returncode}")


def bar(said: dict[str, Any]) -> str:
    """The loss as a length: ten characters for a factor of ten. Plain ones, which every terminal has."""
    return "#" * max(0, round(BAR_PER_DECADE * math.log10(max(said["loss"], BAR_LEAST) / BAR_LEAST)))


def judge(peers: list[Actor], first_loss: float) -> str:
    """What is wrong with the end of the story; empty if nothing is."""
    digests = {each.fact("ended", "digest") for each in peers}
    if len(digests) != 1 or None in digests:
        return f"the peers hold {len(digests)} different models"
    loss = peers[0].fact("ended", "loss")
    if not loss * FALLEN < first_loss:
        return f"the loss went from {first_loss:.4f} to {loss:.4f} only"
    return ""


def tell(out: IO[str]) -> int:
    """Tell the story; the exit status."""
    began = time.monotonic()
    with ExitStack() as stack:
        try:
            story = Story(out, stack)
            _act(story)
        except StoryFailed as failure:
            print(f"[{time.monotonic() - began:5.2f} s] THIS DID NOT HAPPEN AS TOLD: {failure}", file=out, flush=True)
            return 1
    return 0


def _act(story: Story) -> None:
    story.say(
        "the master decides who is in, and never sees a weight; peers join, over TLS, with the address that it prints:"
    )
    story.say(f"    {story.join_address}")
    founder, *newcomers = sorted(story.arrive("Ada", "Ben", "Cleo", "Dan"), key=_came_at)
    first_loss = float(founder.fact("accepted", "loss"))
    story.say(f"{founder} was the first to come, and began with random weights: loss {first_loss:.4f}")
    for newcomer in newcomers:
        story.describe(newcomer)
    story.say("four peers train: each computes the gradient of its own data, and all step with the average")
    story.steps_s.clear()
    story.train(SCENE_STEPS)

    usual_s, cleo = median(story.steps_s), story.peers[2]
    story.say(f"{cleo} is killed (SIGKILL): no goodbye, no clean-up")
    pause_s = story.kill(cleo)
    story.say(
        f"the survivors go on as three: that step took them {pause_s * 1e3:.0f} ms instead of {usual_s * 1e3:.0f}; "
        "no step was lost, no peer was restarted"
    )
    story.train(SCENE_STEPS)

    story.say("Eve and Finn come late")
    for newcomer in story.arrive("Eve", "Finn"):
        story.describe(newcomer)
    story.train(SCENE_STEPS)
    story.finish()
    _end(story, first_loss, pause_s)


def _came_at(peer: Actor) -> int:
    return int(peer.fact("synced", "revision"))


def _end(story: Story, first_loss: float, pause_s: float) -> None:
    for peer in story.peers:
        ended = peer.said["ended"]
        story.say(
            f"{peer.name:4} ends at revision {peer.revision}, loss {ended['loss']:.4f}, digest {ended['digest'][:32]}"
        )
    if wrong := judge(story.peers, first_loss):
        raise StoryFailed(wrong)
    story.say(
        f"summary: 6 peers joined, 1 was killed, 5 hold the same bits; the loss went from {first_loss:.4f} to "
        f"{story.peers[0].said['ended']['loss']:.4f}; the step with the death took {pause_s * 1e3:.0f} ms"
    )
