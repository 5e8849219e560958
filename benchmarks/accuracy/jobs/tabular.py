"""Trains a deep and narrow network on made-up rows.

python tabular.py [--fault optimizer]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.accuracy.jobs.loop import Asked, Batches, Clock, bracket, main

WIDTH, LAYERS, BATCH = 96, 60, 512
FAULTS = ("optimizer",)


class Layer(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The rows, of shape (batch, width), a little changed."""
        return x + functional.relu(self.linear(x)) * 0.1


def train(asked: Asked, clock: Clock) -> None:
    """The training loop."""
    fault = "" if asked.cured else asked.fault
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fault != "optimizer")
    rows = torch.randn(4096, WIDTH)
    for batch in DataLoader(Batches(rows, BATCH, asked.steps), batch_size=None):
        with bracket(model):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
        clock.mark()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main(train, FAULTS)
