"""The tail of a run: few are left, one is left, nobody is left and all come back from a checkpoint."""

import signal

import pytest

from tests.e2e.harness import all_do, join

STEPS = 40
"""In which a few dozen of them a fault must be overcome."""


@pytest.fixture
def start_master(start_master):
    """Neighbours who die together are each other's only witnesses: for a second the master hopes they come back."""
    return lambda *arguments: start_master(*arguments, reunion_s=1.0)


def start(start_peers, master, count):
    """Peers that can train at once, but have not joined."""
    peers = start_peers(count, master.address, token=False)
    all_do(peers, "build", learner="numpy")
    return peers


def train(peers, until):
    for peer in peers:
        peer.order("train_state", steps=until)


def await_revision(peer, revision):
    while peer.expect("step")["revision"] < revision:
        pass


def alike(peers):
    """Those who have trained tell the digests of all revisions that they held: the same for all of them."""
    digests = {}
    told = [peer.expect("train_state") for peer in peers]
    for each in told:
        for revision, digest in each["digests"].items():
            assert digests.setdefault(int(revision), digest) == digest, f"revision {revision} differs"
    return digests, [each["size"] for each in told]


@pytest.mark.parametrize("left", [1, 2, 3])
def test_few_are_left_go_on_and_let_others_in(master, start_peers, left):
    peers = join([], start(start_peers, master, 4))
    newcomers = start(start_peers, master, 4 - left)
    train(peers, 3 * STEPS)
    await_revision(peers[0], 10)
    for victim in peers[left:]:
        victim.signal(signal.SIGKILL)
    await_revision(peers[0], STEPS)
    for newcomer in newcomers:
        newcomer.order("connect")
    train(newcomers, 3 * STEPS)
    digests, sizes = alike([*peers[:left], *newcomers])
    assert [*digests] == [*range(3 * STEPS)]  # Nobody began anew, and no step is missing.
    assert set(sizes) == {4}


def test_one_is_left_of_all_and_the_master(start_master, start_peers):
    """The same Communicator goes on at its revision under the next master, and lets others in."""
    master = start_master()
    peers = join([], start(start_peers, master, 3))
    newcomers = start(start_peers, master, 2)
    train(peers, 3 * STEPS)
    await_revision(peers[0], 10)
    master.kill()
    for victim in peers[1:]:
        victim.kill()
    start_master(f"127.0.0.1:{master.port}").expect_said("goes on", "1 peer")
    await_revision(peers[0], STEPS)
    for newcomer in newcomers:
        newcomer.order("connect")
    train(newcomers, 3 * STEPS)
    digests, sizes = alike([peers[0], *newcomers])
    assert [*digests] == [*range(3 * STEPS)]
    assert set(sizes) == {3}


@pytest.mark.parametrize("same_master", [True, False])
def test_all_die_and_come_back_from_a_checkpoint(start_master, start_peers, tmp_path, same_master):
    master = start_master()
    peers = join([], start(start_peers, master, 3))
    old, new = str(tmp_path / "old.npz"), str(tmp_path / "new.npz")
    train(peers, STEPS // 2)
    alike(peers)
    peers[0].do("save", path=old)
    train(peers, STEPS)
    alike(peers)
    saved = peers[0].do("save", path=new)
    assert saved["revision"] == STEPS
    train(peers, 10 * STEPS)
    await_revision(peers[0], STEPS + 10)
    for victim in peers:
        victim.kill()
    if not same_master:
        master.kill()
        master = start_master()
    # The checkpoint of one is enough, whoever comes first; that of another is older, one comes with nothing.
    returned = start(start_peers, master, 4)
    assert returned[1].do("load", path=old)["revision"] == STEPS // 2
    for peer in returned[2:]:
        assert peer.do("load", path=new)["digest"] == saved["digest"]
    join([], returned)
    train(returned, 2 * STEPS)
    digests, sizes = alike(returned)
    assert digests[STEPS] == saved["digest"]
    assert [*digests] == [*range(STEPS, 2 * STEPS)]
    assert set(sizes) == {4}
