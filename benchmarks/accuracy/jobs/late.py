"""Trains a network on several ranks that sum their gradients with gloo; one of them is late, for one reason or another.

torchrun --nproc-per-node 2 late.py [--fault data|hook|long-hook|python|collections|lengths|rotating]
"""

from __future__ import annotations

import gc
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.accuracy.jobs.loop import Asked, Clock, bracket, main

WIDTH, LAYERS, BATCH, LENGTH = 128, 8, 8, 60
FAULTS = ("data", "hook", "long-hook", "python", "collections", "lengths", "rotating")
HOOK_S = {"hook": 0.03, "long-hook": 0.2}
SAMPLE_S = 0.004
OBJECTS = 150_000


class Rows(Dataset[Tensor]):
    """Rows in memory, or behind something slow."""

    def __init__(self, *, slow: bool) -> None:
        self.slow, self.rows = slow, torch.randn(4096, WIDTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        if self.slow:
            time.sleep(SAMPLE_S)
        return self.rows[index]


class Link:
    """An object that refers to itself, as trees with parents do."""

    def __init__(self) -> None:
        self.own = self


def network() -> nn.Sequential:
    """Linear layers."""
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def checked(gradient: Tensor, seconds: float) -> Tensor:
    """A hook that waits for something."""
    time.sleep(seconds)
    return gradient


def score(count: int) -> int:
    """Python for a while."""
    total = 0
    for number in range(count):
        total += number * number % 7
    return total


def train(asked: Asked, clock: Clock) -> None:
    """The training loop; the last rank is the one at fault."""
    fault = "" if asked.cured else asked.fault
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    late = fault if rank == ranks - 1 else ""
    plain = network()
    model = DistributedDataParallel(plain)
    if late in HOOK_S:
        plain[LAYERS].weight.register_hook(partial(checked, seconds=HOOK_S[late]))
    kept = [Link() for _ in range(OBJECTS)] if late == "collections" else []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = Rows(slow=late == "data")
    loader = DataLoader(rows, batch_size=BATCH, sampler=DistributedSampler(rows))
    length = LENGTH * 7 if late == "lengths" else LENGTH
    for step, batch in zip(range(asked.steps), loader, strict=False):
        with bracket(model):
            given = batch.repeat(length, 1)
            optimizer.zero_grad()
            loss = functional.mse_loss(model(given), given.sum(1, keepdim=True))
            if late == "python" or (fault == "rotating" and step % ranks == rank):
                score(300_000 if late == "python" else 20_000)
            loss.backward()
            optimizer.step()
            if late == "collections":
                gc.collect()
        clock.mark()
    print(f"loss {loss.item():.3f}, {len(kept)} objects")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(train, FAULTS)
