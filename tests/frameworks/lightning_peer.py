"""A peer that is a Lightning `Trainer`: its module is that of any other, plus one callback."""

import json
import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from examples.char_gpt import CharGPT
from pccl.integrations.lightning import DiLoCoCallback
from tests.frameworks.text import Pace, Rounds, await_word, calm, say, stretches


class Module(pl.LightningModule):
    def __init__(self, told):
        super().__init__()
        self.model, self._told = CharGPT(width=32, layers=2), told

    def training_step(self, batch, number):
        return self.model.loss(*batch)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self._told["rate"])
        steps = self._told["steps"]
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Tell(pl.Callback):
    """What the test hears of it."""

    def __init__(self, diloco, told):
        self._diloco, self._rounds, self._pace = diloco, Rounds(), Pace(told)

    def on_train_start(self, trainer, module):
        (config,) = trainer.lr_scheduler_configs
        self._scheduler = config.scheduler
        run = self._diloco.run
        rate, digest = self._scheduler.get_last_lr()[0], run.outer_digest()
        say("joined", step=trainer.global_step, rate=rate, digest=digest, order=torch.rand(3).tolist())

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self._rounds.look(self._diloco.run, self._scheduler.get_last_lr()[0])
        assert trainer.global_step == self._diloco.run.step
        if trainer.global_step % 10 == 0:
            say("loss", step=trainer.global_step, loss=float(outputs["loss"]))
        self._pace.wait(trainer.global_step)


class Save(ModelCheckpoint):
    def _save_checkpoint(self, trainer, path):
        super()._save_checkpoint(trainer, path)
        if path.endswith("last.ckpt"):
            say("saved", step=trainer.global_step)


def main():
    warnings.simplefilter("ignore")
    told = json.loads(sys.argv[1])
    calm()
    module = Module(told)
    await_word()
    diloco = DiLoCoCallback(told["address"], **told["options"])
    save = Save(told["folder"], every_n_train_steps=told["save_every"], save_top_k=1, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=told["steps"],
        callbacks=[diloco, Tell(diloco, told), save],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(module, DataLoader(stretches(), batch_size=4, shuffle=True), ckpt_path=told["resume"])
    say("done", step=trainer.global_step, digest=diloco.run.outer_digest())


if __name__ == "__main__":
    main()
