"""A small GPT that learns to write English, character by character, and its text: the Python documentation that comes
with every Python (`pydoc_data.topics`). For the other examples, which show how it is trained."""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 96
"""Printable ASCII and the end of a line, so that it does not depend on the text of one version of Python."""
CONTEXT = 64


def text():
    """Training and validation text as numbers."""
    whole = "\n".join(topics[name] for name in sorted(topics))
    codes = [0 if each == "\n" else ord(each) - 31 for each in whole if each == "\n" or 32 <= ord(each) < 127]
    numbers = torch.tensor(codes)
    return numbers[: -len(numbers) // 10], numbers[-len(numbers) // 10 :]


def batch(numbers, size, generator):
    """Some stretches of the text, and the same one character further."""
    begins = torch.randint(len(numbers) - CONTEXT - 1, (size,), generator=generator).tolist()
    x = torch.stack([numbers[begin : begin + CONTEXT] for begin in begins])
    y = torch.stack([numbers[begin + 1 : begin + CONTEXT + 1] for begin in begins])
    return x, y


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        size, length, width = x.shape
        split = self.attention(self.before_attention(x)).view(size, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(size, length, width))
        return x + self.mlp(self.before_mlp(x))


class CharGPT(nn.Module):
    def __init__(self, width=48, layers=4, heads=4):
        super().__init__()
        self.characters, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x):
        x = self.characters(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, x, y):
        return functional.cross_entropy(self(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def validation_loss(model, numbers, size=16, batches=16):
    """Over the same stretches each time."""
    generator = torch.Generator().manual_seed(1)
    return sum(float(model.loss(*batch(numbers, size, generator))) for _ in range(batches)) / batches
