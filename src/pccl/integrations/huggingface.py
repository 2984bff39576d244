"""Hugging Face's `Trainer` as a peer: a callback.

    trainer = Trainer(model, arguments, train_dataset=…, callbacks=[DiLoCoCallback(address, sync_every=100)])
    trainer.train()

Owns what a step, a checkpoint and the end mean there. Must not know how rounds are made.
"""

import logging
from pathlib import Path
from typing import Any, Unpack

from pccl import UsageError
from pccl.integrations import advise
from pccl.integrations.loops import Loop
from pccl.training.checkpoint import load, write
from pccl.training.diloco import DiLoCo
from pccl.training.settings import Options

with advise("huggingface"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

log = logging.getLogger("pccl.training")

NAME = "pccl.pt"
"""In each checkpoint of the Trainer: outer parameters, momentum and round. Plain tensors."""


class DiLoCoCallback(TrainerCallback):
    """Train with other peers: `address` is the master's (default: `PCCL_MASTER`), the other settings are those of
    `pccl.training.DiLoCo`, and `run` is that object.

    Steps are those of the run: a peer that joins later begins at its step, with its learning rate, and ends with it.
    Each peer shuffles in an order of its own. `resume_from_checkpoint` goes on from what was saved, or, where the run
    has gone on meanwhile, from there. SIGTERM ends the round, saves a checkpoint, and ends the training."""

    def __init__(self, address: str | None = None, **options: Unpack[Options]) -> None:
        self._loop = Loop(address, options)
        self._tokens: int | None = None
        self._logged_at = self._made = 0
        """The step of the last log, and steps made here since: the run's step may have jumped in between."""

    @property
    def run(self) -> DiLoCo:
        """From the beginning of the training on."""
        return self._loop.run

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Join, and take over the run's step."""
        if args.world_size > 1:
            raise UsageError(
                f"DiLoCoCallback: a peer must be one process, got {args.world_size} that accelerate has joined; start "
                "each without a launcher"
            )
        self._logged_at, self._made = state.global_step, 0
        run = self._loop.join(held["model"], [held["optimizer"]], _plain(held["lr_scheduler"]), _saved(args, state))
        state.global_step = run.step
        self._tokens = state.num_input_tokens_seen if args.include_num_input_tokens_seen != "no" else None
        _shuffle(held["train_dataloader"], self._loop.own_seed(args.seed if args.data_seed is None else args.data_seed))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """Count what the step has seen, before it may end a round."""
        if self._tokens is not None:
            self.run.count_tokens(int(state.num_input_tokens_seen) - self._tokens)
            self._tokens = int(state.num_input_tokens_seen)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any
    ) -> None:
        """The hook of the optimizer has counted the step; the Trainer adds one."""
        state.global_step = self.run.step - 1
        self._made += 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any) -> None:
        """Go with the last step: what comes after it may load another model."""
        if self._loop.told_to_go:
            control.should_save = control.should_training_stop = True
        if control.should_training_stop:
            self._loop.finish()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **held: Any
    ) -> None:
        """The Trainer has divided the sum of losses by the steps of the run, where a newcomer has made fewer."""
        if not logs or "loss" not in logs:
            return
        if self._made:
            logs["loss"] *= (state.global_step - self._logged_at) / self._made
            state.log_history[-1]["loss"] = logs["loss"]
        self._logged_at, self._made = state.global_step, 0
        if self._loop.joined:
            self.run.note_loss(float(logs["loss"]))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any) -> None:
        """Beside what the Trainer has saved of this step."""
        if args.should_save:
            write(_folder(args, state) / NAME, self.run.state_dict())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **held: Any) -> None:
        """Where the data ended first; the best model of this peer is then not what its steps have made."""
        if args.load_best_model_at_end:
            self._loop.leave()
        self._loop.finish()


def _plain(scheduler: Any) -> Any:
    """Torch's own, without accelerate's around it."""
    return getattr(scheduler, "scheduler", scheduler)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _saved(args: TrainingArguments, state: TrainerState) -> dict[str, Any] | None:
    """What was saved at the step from which the Trainer goes on; None where it begins. A process that is killed while
    it saves leaves a checkpoint that is not whole: then that before it counts, for all that the Trainer has loaded."""
    if not state.global_step:
        return None
    steps = (path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in Path(args.output_dir).iterdir())
    for step in sorted((int(each) for each in steps if each.isdecimal()), reverse=True):
        path = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}" / NAME
        if step <= state.global_step and path.exists():
            if step < state.global_step:
                log.warning("no %s in the checkpoint of step %d: going on from %s", NAME, state.global_step, path)
            saved: dict[str, Any] = load(path)
            return saved
    raise UsageError(
        f"DiLoCoCallback: a checkpoint must hold {NAME}, got none up to step {state.global_step} in {args.output_dir}; "
        "resume from a folder that has one, or begin with the weights of this one (from_pretrained)"
    )


def _shuffle(loader: Any, seed: int) -> None:
    """In an order of this peer's own; and so with all other chance of this process, such as dropout."""
    set_seed(seed)
    sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if hasattr(sampler, "initial_seed"):
        sampler.initial_seed = seed
    if getattr(sampler, "generator", None) is not None:
        sampler.generator.manual_seed(seed)
