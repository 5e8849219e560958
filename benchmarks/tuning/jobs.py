"""Five small jobs: three with one thing set badly, two as they should be. `WHYSTALL_HAND` holds settings by hand.

python benchmarks/tuning/jobs.py loader
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

HAND: dict[str, Any] = json.loads(os.environ.get("WHYSTALL_HAND", "{}"))
STEPS = 400


class Remote(Dataset[Any]):
    """Samples that come over a network: 3 ms each, in which no processor works."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.003)
        return torch.full((64,), index / 4096), index % 4


def mlp(width: int, depth: int, inputs: int = 64) -> nn.Module:
    """A stack of linear layers."""
    layers: list[nn.Module] = [nn.Linear(inputs, width)]
    for _ in range(depth):
        layers += [nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Linear(width, 4))


class InHalf(nn.Module):
    """A model whose products are in 16 bits, which processors of today multiply faster."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the model makes of a batch, in 32 bits again."""
        with torch.autocast("cpu", torch.bfloat16):
            made: torch.Tensor = self.model(inputs)
        return made.float()


def in_memory(batch: int) -> DataLoader[Any]:
    """Tensors that are there already."""
    data = TensorDataset(torch.randn(8192, 64), torch.randint(4, (8192,)))
    return DataLoader(data, batch_size=batch, shuffle=True)


def loader() -> tuple[DataLoader[Any], nn.Module, torch.optim.Optimizer]:
    """Samples that are waited for, fetched by the training process itself."""
    torch.set_num_threads(1)
    model = mlp(256, 4)
    options = {name: HAND[name] for name in ("num_workers", "prefetch_factor") if name in HAND}
    return (
        DataLoader(Remote(), batch_size=16, shuffle=True, **options),
        model,
        torch.optim.SGD(model.parameters(), 0.01),
    )


def threads() -> tuple[DataLoader[Any], nn.Module, torch.optim.Optimizer]:
    """Functions of single elements, for each of which far more threads are woken than there are cores."""
    torch.set_num_threads(HAND.get("threads", 16))
    parts = [part for _ in range(40) for part in (nn.LayerNorm(1024), nn.GELU())]
    model = nn.Sequential(nn.Linear(64, 1024), *parts, nn.Linear(1024, 4))
    return in_memory(256), model, torch.optim.SGD(model.parameters(), 0.01)


def optimizer() -> tuple[DataLoader[Any], nn.Module, torch.optim.Optimizer]:
    """Many small parameters, each updated by itself."""
    torch.set_num_threads(HAND.get("threads", 1))
    model = mlp(48, 200)
    how = {"fused": True} if HAND.get("fused") else {"foreach": False}
    return in_memory(8), model, torch.optim.AdamW(model.parameters(), 1e-3, **how)


def healthy_memory() -> tuple[DataLoader[Any], nn.Module, torch.optim.Optimizer]:
    """Tensors in memory, products on all cores in 16 bits, a fused optimizer."""
    model = InHalf(mlp(768, 6))
    return in_memory(256), model, torch.optim.AdamW(model.parameters(), 1e-3, fused=True)


def healthy_workers() -> tuple[DataLoader[Any], nn.Module, torch.optim.Optimizer]:
    """Samples that are waited for by as many workers as hide it, products in 16 bits."""
    model = InHalf(mlp(1024, 10))
    loading = DataLoader(Remote(), batch_size=16, shuffle=True, num_workers=4, prefetch_factor=4)
    return loading, model, torch.optim.SGD(model.parameters(), 0.01, fused=True)


JOBS = {job.__name__: job for job in (loader, threads, optimizer, healthy_memory, healthy_workers)}


def train(batches: DataLoader[Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Trains for some steps; the loss is printed now and then, and the mean step at the end."""
    done, began = 0, time.perf_counter()
    while True:
        for inputs, labels in batches:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == 10:
                began = time.perf_counter()
            if done % 10 == 0:
                print(f"step {done} loss {loss.item():.5f}", flush=True)
            if done == HAND.get("steps", STEPS):
                print(f"mean step {(time.perf_counter() - began) / (done - 10):.6f}", flush=True)
                return


if __name__ == "__main__":
    torch.manual_seed(0)
    train(*JOBS[sys.argv[1]]())
