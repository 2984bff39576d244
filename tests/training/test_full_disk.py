"""Checkpoints that could not be written: a later one that could makes up for it, and the last one is tried anyway."""

import os
import signal

import pytest

from pccl.training.checkpoint import Saver, found, newest
from tests.training import oracle
from tests.training.test_saving import EVERY, make


class Folder:
    """A place where a folder cannot be made for a while, as on a disk that is full or not mounted."""

    def __init__(self, path):
        self.path = path
        path.write_text("in the way")

    def heal(self):
        self.path.unlink()


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "checkpoints")


def test_a_failure_is_raised_unless_a_later_checkpoint_was_written(folder, caplog):
    saver = Saver(folder.path, 1, 3)
    saver.begin(1, {})
    with pytest.raises(OSError, match="checkpoints"):
        saver.finish()
    saver.begin(2, {})
    saver._thread.join()
    folder.heal()
    saver.begin(3, {})
    saver.finish()
    assert caplog.text.count("could not be written") == 2
    assert [path.name for path in found(folder.path)] == ["round-000000003.pt"]


@pytest.mark.parametrize("healed", [True, False])
def test_sigterm_saves_whatever_failed_before(crew, folder, healed):
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # A Communicator of an earlier test may have left its own.
    run, model = make(crew)
    run.checkpoint(folder.path)

    def train():
        with run:
            for step in range(2 * EVERY + 1):
                if step == 2 * EVERY:
                    run._saver.every = 10**6
                    if healed:
                        folder.heal()
                    os.kill(os.getpid(), signal.SIGTERM)
                    while not run._notice.given:
                        pass
                    vars(run._notice)["_notice_s"] = 0.0  # No time for the rest of the round.
                oracle.inner_step(model, run._optimizers[0], 0, step)

    try:
        with pytest.raises(SystemExit if healed else OSError) as ended:
            train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not run._group.joined
    if healed:
        assert ended.value.code == 0
        assert newest(folder.path)["round"] == 2
