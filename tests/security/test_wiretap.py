"""A wiretap of a whole run: training steps with and without a codec, a join with prefetch and state transfer, express
lanes, a restart of the master. What it records shows no token, no key, no name and no 16 bytes of a tensor.

There is a tap in front of every port, so that all bytes between any two parties pass one. Without a secret, and on
lanes with `lane_tls="off"`, the same tap must find what it looks for: else it would show nothing.
"""

import contextlib

import numpy as np
import pytest

from pccl import SharedState, TensorInfo
from pccl.net.express import Express
from pccl.security import tokens
from tests.e2e.test_api import free_port
from tests.security.attacker import Run
from tests.security.conftest import Tap
from tests.security.test_secured_run import admit, together

LARGE, SHORT = 60_000, 100
"""Elements that go around the ring, and that travel with their vote."""
NAME = "decoder.layer.17.attention.weight"


class Material:
    """Tensors that are found where they pass: no two have 16 bytes in common."""

    def __init__(self):
        self._chance = np.random.default_rng(18)
        self.tensors = {}
        """By what they were used for."""

    def floats(self, use, count):
        made = self._chance.standard_normal(count).astype(np.float32)
        self.tensors.setdefault(use, []).append(made.copy())
        return made

    def coded(self, use, count):
        """Their codes by minmax8 are their values: every block has both ends of the range."""
        made = self._chance.integers(0, 256, count)
        made[::64], made[1::64] = 0, 255
        self.tensors.setdefault(use, []).append(made.astype(np.uint8))
        return made.astype(np.float32)


class Sought:
    """Finds any 16 bytes in a row of some tensors. They have 8 among them that begin at a multiple of 8 in a tensor:
    these are looked for at every place of a stream."""

    def __init__(self, *tensors):
        self._content = b"\n".join(tensor.tobytes() for tensor in tensors)
        aligned = [tensor.tobytes()[: tensor.nbytes // 8 * 8] for tensor in tensors]
        self._words = np.unique(np.frombuffer(b"".join(aligned), np.uint64))
        self._marked = np.zeros(1 << 24, bool)
        """By some bits of a word, so that most words of a stream need no search."""
        self._marked[self._bits(self._words)] = True

    @staticmethod
    def _bits(words):
        return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)

    def seen_in(self, stream):
        """Whether some are there."""
        for shift in range(min(8, len(stream))):
            passed = np.frombuffer(stream, np.uint8)[shift:]
            passed = passed[: len(passed) // 8 * 8].view(np.uint64)
            places = np.flatnonzero(self._marked[self._bits(passed)])
            nearest = np.searchsorted(self._words, passed[places]).clip(max=len(self._words) - 1)
            places = places[self._words[nearest] == passed[places]]
            if any(self._is_seen(stream, shift + 8 * int(place)) for place in places):
                return True
        return False

    def _is_seen(self, stream, begin):
        around = (stream[at : at + 16] for at in range(max(0, begin - 8), begin + 1))
        return any(len(each) == 16 and each in self._content for each in around)


def test_the_search_finds_16_bytes_wherever_they_are_and_not_15():
    tensor = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    sought, content, noise = Sought(tensor), tensor.tobytes(), np.random.default_rng(2).bytes(5000)
    for begin in range(1000, 1010):
        for shift in range(8):
            stream = noise[: 100 + shift] + content[begin : begin + 16] + noise[200:]
            assert sought.seen_in(stream)
            assert not sought.seen_in(noise[: 100 + shift] + content[begin : begin + 15] + noise[200:])


class Tapped:
    """A run in which every connection passes a tap."""

    def __init__(self, stack, run, **more):
        self._stack, self._run, self._more = stack, run, more
        self.taps = []
        self._master = self._tap(run.port)
        self.private = []
        """Secrets of peers, and their names: on control connections alone."""
        self.ids = [run.master._core.lead.run.encode()]
        """Of the run and of its peers: on lanes, too."""

    def peer(self, name, **more):
        port = free_port()
        more = {"listen": f"127.0.0.1:{port}", "announce": self._tap(port).address, **self._more, **more}
        self.private.append(name.encode())
        return self._run.peer(name, self._master.address, **more)

    def know(self, peer):
        """What is secret of one that has connected."""
        identity = peer._membership.core.identity
        self.private.append(identity.secret.encode())
        self.ids.append(identity.peer.encode())

    def _tap(self, port):
        self.taps.append(Tap(port))
        self._stack.callback(self.taps[-1].close)
        return self.taps[-1]

    def streams(self):
        return [bytes(stream) for tap in self.taps for stream in list(tap.streams)]


def reduce_all(peers, arrays, **more):
    together(*(lambda p=p, a=a: p.all_reduce(a, **more) for p, a in zip(peers, arrays, strict=True)))


def step(peers, material, when):
    """Around the ring, as floats and as codes."""
    reduce_all(peers, [material.floats(f"ring {when}", LARGE) for _ in peers])
    reduce_all(peers, [material.coded(f"codes {when}", LARGE) for _ in peers], quantize="minmax8")


def exchange(peers, material, started):
    """Short ones, until one has travelled by express lanes: round trips are measured first."""
    for _ in range(200):
        before = len(started)
        arrays = [material.floats("passing", SHORT) for _ in peers]
        sent = [array.copy() for array in arrays]
        reduce_all(peers, arrays)
        if len(started) > before:
            material.tensors["express"] = sent
            return
    pytest.fail("no short tensor travelled with its vote")


def held(tensors):
    return SharedState([TensorInfo.from_numpy(tensor, f"{NAME}.{place}") for place, tensor in enumerate(tensors)])


def sync_all(peers, states):
    together(*(lambda p=p, s=s: p.sync_shared_state(s) for p, s in zip(peers, states, strict=True)))


def play(tapped, run, material, started):
    """The whole run."""
    peers = [
        tapped.peer("anna-of-the-first-site", data_plane="native"),
        tapped.peer("bert-of-the-first-site", data_plane="reference"),
    ]
    peers[0].connect()
    together(peers[1].connect, admit(peers[0], 2))
    weights = [material.floats("prefetched", LARGE) for _ in range(2)]
    mine = [[each.copy() for each in weights] for _ in peers]
    states = [held(tensors) for tensors in mine]
    sync_all(peers, states)
    step(peers, material, "before")
    exchange(peers, material, started)
    newcomer = tapped.peer("carl-of-the-first-site", data_plane="native")
    empty = [np.zeros(LARGE, np.float32) for _ in weights]
    theirs = held(empty)
    newcomer.prefetch_shared_state(theirs)
    assert all((one == other).all() for one, other in zip(empty, weights, strict=True))
    together(newcomer.connect, *(admit(peer, 3) for peer in peers))
    changed = material.floats("transferred", LARGE)
    for tensors, state in zip(mine, states, strict=True):
        tensors[1][:] = changed
        state.revision += 1
    sync_all([*peers, newcomer], [*states, theirs])
    assert (empty[1] == changed).all()
    peers.append(newcomer)
    for peer in peers:
        tapped.know(peer)
    run.restart()
    step(peers, material, "after a restart")
    together(*(peer.close for peer in peers))


@pytest.fixture
def started(monkeypatch):
    """Exchanges by express lanes so far."""
    begun, start = [], Express.start

    def noted(self, effect):
        begun.append(effect)
        start(self, effect)

    monkeypatch.setattr(Express, "start", noted)
    return begun


@pytest.mark.parametrize("mode", ["sealed", "lane_tls off", "open"])
def test_a_wiretap_of_a_whole_run(mode, tmp_path, started):
    material = Material()
    with contextlib.ExitStack() as stack:
        run = Run(stack, "" if mode == "open" else tmp_path / "secret", follows=True)
        tapped = Tapped(stack, run, lane_tls="off" if mode == "lane_tls off" else "on")
        keys = secrets_of(run)
        play(tapped, run, material, started)
        keys += secrets_of(run)
        streams = tapped.streams()
    everything = b"\n".join(streams)
    assert len(everything) > 10 * 4 * LARGE, "the run has passed the taps"
    for key in keys:
        assert key not in everything
    for text in tapped.private:
        assert (text in everything) == (mode == "open"), text
    for text in tapped.ids:
        assert (text in everything) == (mode != "sealed"), text
    assert (NAME.encode() in everything) == (mode != "sealed")
    del material.tensors["passing"]
    for use, tensors in material.tensors.items():
        sought = Sought(*tensors)
        assert any(map(sought.seen_in, streams)) == (mode != "sealed"), use


def secrets_of(run):
    """Tokens and keys of this master and of its links."""
    if not run.token:
        return []
    token, door = tokens.parse(run.token), run.master._door
    link_keys = [door.link_key(number) for number in range(1, 100)]
    return [run.token.encode(), token.key, token.pin, door._secret._content, *link_keys]
