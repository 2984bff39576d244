"""Lightning's Trainer, two of them and more: a kill, a join, a resume, a notice."""

import signal

from tests.frameworks import fleet

fleet.needs("lightning")

PEER = "tests.frameworks.lightning_peer"


def test_one_is_killed_and_one_joins(master, processes, tmp_path):
    fleet.one_is_killed_and_one_joins(processes, PEER, master.address, tmp_path)


def test_all_are_killed_and_go_on(master, processes, tmp_path):
    fleet.all_are_killed_and_go_on(processes, PEER, master.address, tmp_path, lambda folder: str(folder / "last.ckpt"))


def test_a_notice_ends_the_training_and_the_peer_says_goodbye(master, processes, tmp_path):
    told = {"options": {"sync_every": fleet.EVERY}, "step_s": 0.02}
    (peer,) = fleet.start(processes, PEER, master.address, tmp_path, 1, **told)
    peer.go()
    peer.expect("round")
    peer.signal(signal.SIGTERM)
    master.expect_said("is gone", "said goodbye")


def test_a_checkpoint_before_the_training_has_what_was_loaded_or_nothing(tmp_path):
    """Of a model that was only validated, say."""
    import lightning.pytorch as pl

    from pccl.integrations.lightning import DiLoCoCallback

    callback = DiLoCoCallback("127.0.0.1:1")
    trainer = pl.Trainer(accelerator="cpu", callbacks=[callback], logger=False, default_root_dir=tmp_path)
    trainer.strategy.connect(pl.LightningModule())
    trainer.save_checkpoint(tmp_path / "early.ckpt")
    assert callback.state_dict() == {}
    callback.load_state_dict({"round": 3})
    assert callback.state_dict() == {"round": 3}
    callback.load_state_dict({})
    assert callback.state_dict() == {}
