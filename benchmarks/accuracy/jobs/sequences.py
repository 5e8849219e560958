"""Reads made-up sequences: the same arithmetic in many small operators or in a few large ones.

python sequences.py [--fault loop|single]

``loop``: a recurrent network that steps through time in Python. ``single``: a model that answers requests one by one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.accuracy.jobs.loop import Asked, Clock, bracket, main

FAULTS = ("loop", "single")
WIDTH, LENGTH, BATCH, REQUESTS = 48, 200, 16, 96


class Looped(nn.Module):
    """An LSTM of one layer, cell by cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The states, of the sequences' shape (batch, length, width)."""
        state = (x.new_zeros(len(x), WIDTH), x.new_zeros(len(x), WIDTH))
        found = []
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
            found.append(state[0])
        return torch.stack(found, 1)


class Fused(nn.Module):
    """The same in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The states."""
        found: Tensor = self.layer(x)[0]
        return found


def train(asked: Asked, clock: Clock, *, looped: bool) -> None:
    """A regression on sequences."""
    model = Looped() if looped else Fused()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(64, BATCH, LENGTH, WIDTH)
    for number in range(asked.steps * 4):
        with bracket(model):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(rows[number % 64]), rows[number % 64])
            loss.backward()
            optimizer.step()
        clock.mark()
    print(f"loss {loss.item():.3f}")


def answer(asked: Asked, clock: Clock, *, single: bool) -> None:
    """Answers requests in evaluation; a step is as many of them either way."""
    layers = [part for _ in range(8) for part in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 4)).eval()
    requests = torch.randn(REQUESTS, WIDTH)
    with torch.inference_mode():
        for _ in range(asked.steps * 8):
            with bracket(model):
                for batch in requests.split(1 if single else REQUESTS):
                    model(batch).argmax(1)
            clock.mark()


def run(asked: Asked, clock: Clock) -> None:
    """The job that is asked for."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if asked.fault == "single":
        answer(asked, clock, single=not asked.cured)
    else:
        train(asked, clock, looped=asked.fault == "loop" and not asked.cured)


if __name__ == "__main__":
    main(run, FAULTS)
