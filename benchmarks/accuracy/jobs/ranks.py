"""Trains a network on two ranks that sum their gradients with gloo.

torchrun --nproc-per-node 2 ranks.py [--fault straggler|small-messages]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.accuracy.jobs.loop import Asked, Batches, Clock, bracket, main

WIDTH, LAYERS, BATCH = 160, 32, 768
FAULTS = ("straggler", "small-messages")


def network() -> nn.Sequential:
    """Linear layers."""
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def reduce_each(model: nn.Module) -> None:
    """Sum the gradients one by one, each waited for."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            for piece in parameter.grad.view(-1).chunk(4):
                dist.all_reduce(piece)
            parameter.grad /= dist.get_world_size()


def train(asked: Asked, clock: Clock) -> None:
    """The training loop."""
    fault = "" if asked.cured else asked.fault
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    plain = network()
    by_hand = fault == "small-messages"
    model: nn.Module = plain if by_hand else DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(8192, WIDTH)
    uneven = fault == "straggler" and dist.get_rank() == 1
    share = BATCH * 8 // 5 if uneven else BATCH  # rank 1 was given more rows than its share
    for batch in DataLoader(Batches(rows, share, asked.steps), batch_size=None):
        with bracket(model):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            loss.backward()
            if by_hand:
                reduce_each(model)
            optimizer.step()
        clock.mark()
    print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(train, FAULTS)
