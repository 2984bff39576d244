"""A loop of torchtitan's shape, as a peer: a Trainer with a list of optimizers and one of schedulers, a step that it
counts, checkpoints; and no torch.distributed between peers. In one terminal `pccl master --listen localhost`, in as
many others as you like:

python examples/titan_loop.py 127.0.0.1:48148 --folder /tmp/anna

The lines that make it a peer end with `# pccl`. Kill it and start it again: it goes on from the run, or from its folder
where no other peer is left. A Trainer of torchtitan is changed in the same places.
"""

import argparse

import torch
from char_gpt import CharGPT, batch, text, validation_loss

from pccl.training import DiLoCo

WARM_UP = 20


class Trainer:
    def __init__(self, arguments):
        self.arguments, self.step = arguments, 0
        self.model_parts, (self.text, self.valid) = [CharGPT(width=32, layers=2)], text()
        matrices = [each for each in self.model_parts[0].parameters() if each.ndim > 1]
        others = [each for each in self.model_parts[0].parameters() if each.ndim <= 1]
        self.optimizers = [torch.optim.AdamW(matrices, lr=3e-3), torch.optim.AdamW(others, lr=3e-3, weight_decay=0.0)]
        self.lr_schedulers = [torch.optim.lr_scheduler.LambdaLR(each, self._share) for each in self.optimizers]
        self.run = DiLoCo(  # pccl
            arguments.address,
            self.model_parts[0],
            self.optimizers,  # a step ends with the last one
            scheduler=self.lr_schedulers,
            sync_every=arguments.every,
            min_peers=arguments.min_peers,
            quantize="int8",
        )
        if arguments.folder:
            self.run.checkpoint(arguments.folder, every=2)  # pccl
            self.run.resume(arguments.folder)  # pccl

    def _share(self, step):
        left = 1 - step / (self.arguments.rounds * self.arguments.every)
        return min((step + 1) / WARM_UP, max(0.0, left))

    def train_step(self, chance):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        x, y = batch(self.text, 8, chance)
        loss = self.model_parts[0].loss(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model_parts[0].parameters(), 1.0)
        self.run.count_tokens(x.numel())  # pccl
        self.run.note_loss(loss.item())  # pccl
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.lr_schedulers:
            scheduler.step()

    def train(self):
        with self.run as run:  # pccl
            chance = torch.Generator().manual_seed(int(run.communicator.peer_id[:8], 16))
            self.step = run.step  # pccl
            print(f"begins at step {self.step}, learning rate {self.lr_schedulers[0].get_last_lr()[0]:.6g}", flush=True)
            while run.round < self.arguments.rounds:
                self.train_step(chance)
                self.step = run.step  # pccl
                if self.step % self.arguments.every == 0:
                    print(f"round {run.round}: {run.outer_digest()[:8]}", flush=True)
        return validation_loss(self.model_parts[0], self.valid), run.outer_digest()[:8]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:48148")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--every", type=int, default=20, help="steps of a round")
    parser.add_argument("--min-peers", type=int, default=1)
    parser.add_argument("--folder", help="for checkpoints")
    torch.set_num_threads(1)
    loss, digest = Trainer(parser.parse_args()).train()
    print(f"validation loss {loss:.3f}, digest {digest}")
