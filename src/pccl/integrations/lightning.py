"""Lightning's `Trainer` as a peer: a callback.

    trainer = lightning.Trainer(max_steps=…, callbacks=[DiLoCoCallback(address, sync_every=100)])
    trainer.fit(model, loader)

Owns what a step, a checkpoint and the end mean there. Must not know how rounds are made.
"""

from typing import Any, Unpack

from pccl import UsageError
from pccl.integrations import advise
from pccl.integrations.loops import Loop
from pccl.training.diloco import DiLoCo
from pccl.training.schedules import Schedules
from pccl.training.settings import Options

with advise("lightning"):
    from lightning.fabric.utilities.seed import seed_everything
    from lightning.pytorch import Callback, LightningModule, Trainer


class DiLoCoCallback(Callback):
    """Train with other peers: `address` is the master's (default: `PCCL_MASTER`), the other settings are those of
    `pccl.training.DiLoCo`, and `run` is that object.

    Steps are those of the run: a peer that joins later begins at its step, with its learning rate, and ends with it
    (`max_steps`). Each peer shuffles in an order of its own. `fit(ckpt_path=…)` goes on from what was saved, or, where
    the run has gone on meanwhile, from there. A SIGTERM is Lightning's: it ends the training after the step."""

    def __init__(self, address: str | None = None, **options: Unpack[Options]) -> None:
        self._loop = Loop(address, options)
        self._saved: dict[str, Any] | None = None

    @property
    def run(self) -> DiLoCo:
        """From the beginning of the training on."""
        return self._loop.run

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join, and take over the run's step."""
        if trainer.world_size > 1:
            raise UsageError(
                f"DiLoCoCallback: a peer must be one process, got {trainer.world_size} that Lightning has joined; pass "
                "devices=1 and start one process for each peer"
            )
        self._loop.join(pl_module, trainer.optimizers, _schedules(trainer), self._saved)
        self._saved = None
        self._follow(trainer)
        seed_everything(self._loop.own_seed(0), verbose=False)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The hook of the optimizer has counted the step."""
        # Once in a round, with its last loss but one: each look waits for the device.
        if isinstance(outputs, dict) and "loss" in outputs and self.run.round_step + 1 == self.run.settings.sync_every:
            self.run.note_loss(float(outputs["loss"]))
        self._follow(trainer)
        if self._loop.told_to_go:
            trainer.should_stop = True

    def _follow(self, trainer: Trainer) -> None:
        """Lightning's step is that of the run: it ends the training and names checkpoints. Each optimizer counts
        towards it, so with several it is counted there as often."""
        epoch_loop = trainer.fit_loop.epoch_loop
        if trainer.lightning_module.automatic_optimization:
            epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = self.run.step
        else:
            steps = self.run.step * len(trainer.optimizers)
            epoch_loop.manual_optimization.optim_step_progress.total.completed = steps

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last steps are in a round, too."""
        self._loop.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Also on SIGTERM and Ctrl-C."""
        self._loop.leave()

    def state_dict(self) -> dict[str, Any]:
        """In each checkpoint of Lightning: outer parameters, momentum and round. Plain tensors. Before training begins
        what was loaded, if anything."""
        return self.run.state_dict() if self._loop.begun else self._saved or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Before the run is joined."""
        self._saved = state_dict or None


def _schedules(trainer: Trainer) -> Schedules | None:
    """Those that count steps or epochs, with the steps from one to the next; those that watch a metric see the same one
    on a newcomer as on others."""
    batches = trainer.num_training_batches
    epoch = int(batches) // trainer.accumulate_grad_batches if batches != float("inf") else 0
    found = [
        (config.scheduler, config.frequency * (1 if config.interval == "step" else epoch))
        for config in trainer.lr_scheduler_configs
        if not config.reduce_on_plateau and (config.interval == "step" or epoch)
    ]
    return Schedules(found) if found else None
