"""A peer that is a Hugging Face `Trainer`: its model and arguments are those of any other, plus one callback."""

import json
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from pccl.integrations.huggingface import DiLoCoCallback
from tests.frameworks.text import Pace, Rounds, await_word, calm, say, stretches


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self._pairs = stretches()

    def __len__(self):
        return len(self._pairs)

    def __getitem__(self, number):
        x = self._pairs[number][0]
        return {"input_ids": x, "labels": x}


class Tell(TrainerCallback):
    """What the test hears of it."""

    def __init__(self, diloco, told):
        self._diloco, self._rounds, self._pace = diloco, Rounds(), Pace(told)

    def on_train_begin(self, args, state, control, lr_scheduler=None, train_dataloader=None, **_):
        rate = lr_scheduler.get_last_lr()[0]
        order = next(iter(train_dataloader.batch_sampler))
        say("joined", step=state.global_step, rate=rate, digest=self._diloco.run.outer_digest(), order=order)

    def on_step_end(self, args, state, control, lr_scheduler=None, **_):
        self._rounds.look(self._diloco.run, lr_scheduler.get_last_lr()[0])
        assert state.global_step == self._diloco.run.step or control.should_training_stop
        self._pace.wait(state.global_step)

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            say("loss", step=state.global_step, loss=float(logs["loss"]))

    def on_save(self, args, state, control, **_):
        say("saved", step=state.global_step)


def make_model(vocabulary, context):
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": context}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, **shape))


def main():
    told = json.loads(sys.argv[1])
    model = make_model(*calm())
    arguments = TrainingArguments(
        output_dir=told["folder"],
        max_steps=told["steps"],
        per_device_train_batch_size=4,
        learning_rate=told["rate"],
        logging_steps=10,
        save_steps=told["save_every"],
        save_total_limit=2,
        disable_tqdm=True,
        report_to="none",
        use_cpu=True,
    )
    await_word()
    diloco = DiLoCoCallback(told["address"], **told["options"])
    trainer = Trainer(model, arguments, train_dataset=Data(), callbacks=[diloco, Tell(diloco, told)])
    trainer.train(resume_from_checkpoint=told["resume"])
    say("done", step=trainer.state.global_step, digest=diloco.run.outer_digest())


if __name__ == "__main__":
    main()
