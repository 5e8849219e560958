"""Click model of the ad server, data-parallel on two ranks.

The batch that gives a stable AUC does not fit, so each rank adds up the gradients of
several slices of it before the optimizer moves.
"""

import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FIELDS, BUCKETS, DIM = 16, 6000, 32
DENSE = 13
SLICE, SLICES = 256, 4


class CrossLayer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lin = nn.Linear(n, n)

    def forward(self, x0, x):
        return x0 * self.lin(x) + x


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(FIELDS * BUCKETS, DIM)
        nn.init.normal_(self.table.weight, std=0.02)
        n = FIELDS * DIM + DENSE
        self.cross = nn.ModuleList(CrossLayer(n) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(n, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.head = nn.Linear(n + 256, 1)
        self.register_buffer("offset", torch.arange(FIELDS) * BUCKETS)

    def forward(self, fields, dense):
        x0 = torch.cat([self.table(fields + self.offset).flatten(1), dense], 1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.head(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


def impressions(rank):
    g = torch.Generator().manual_seed(100 + rank)
    pool = [
        (torch.randint(0, BUCKETS, (SLICE, FIELDS), generator=g), torch.randn(SLICE, DENSE, generator=g))
        for _ in range(24)
    ]
    while True:
        for fields, dense in pool:
            yield fields, dense, (dense[:, 0] + 0.5 * dense[:, 3] > 0.8).float()


class Trainer:
    def __init__(self, model, better):
        self.model = DistributedDataParallel(model)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, fused=True)
        self.better = better

    def scope(self, k):
        if self.better and k < SLICES - 1:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def step(self, data):
        self.opt.zero_grad()
        total = 0.0
        for k in range(SLICES):
            fields, dense, click = next(data)
            with self.scope(k):
                loss = nn.functional.binary_cross_entropy_with_logits(self.model(fields, dense), click) / SLICES
                loss.backward()
            total += loss.item()
        self.opt.step()
        return total


def still_time(end):
    """Rank 0's clock decides for both."""
    flag = torch.tensor([time.perf_counter() < end])
    dist.broadcast(flag, 0)
    return bool(flag)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    trainer = Trainer(ClickModel(), args.better)
    data = impressions(rank)

    times, step = [], 0
    end = time.perf_counter() + args.seconds
    while still_time(end):
        t0 = time.perf_counter()
        loss = trainer.step(data)
        times.append(time.perf_counter() - t0)
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)

    if rank == 0:
        print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
        if args.times:
            with open(args.times, "w") as f:
                json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
