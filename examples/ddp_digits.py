"""Data parallelism: every step with the mean of all peers' gradients, on digits that are drawn here. Peers may come and
go at any time. In one terminal `pccl master --listen localhost`, in two or more others:

python examples/ddp_digits.py 127.0.0.1:48148
"""

import sys

import torch
from torch import nn
from torch.nn import functional

from pccl.training import DataParallel

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 500

ROWS = ["75557", "26227", "71747", "71317", "55711", "74717", "74757", "71122", "75757", "75717"]
SHAPES = torch.tensor([[[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in digit] for digit in ROWS]).float()


def batch(size):
    """Digits somewhere in 8 x 8 dots, with noise."""
    labels = torch.randint(10, (size,))
    images = 0.3 * torch.randn(size, 8, 8)
    for image, label in zip(images, labels, strict=True):
        top, left = torch.randint(4, (1,)).item(), torch.randint(6, (1,)).item()
        image[top : top + 5, left : left + 3] += SHAPES[label]
    return images.unsqueeze(1), labels


torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(1, 64, (5, 3)), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

with DataParallel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:48148", model, optimizer) as run:
    while run.step < STEPS:
        images, labels = batch(32)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.step % 50 == 0:
            print(f"step {run.step}: {run.metrics()['peers']} peers", flush=True)

images, labels = batch(1000)
right = (model(images).argmax(1) == labels).float().mean()
print(f"{right:.1%} right after {run.step} steps, digest {run.outer_digest()[:8]}")
