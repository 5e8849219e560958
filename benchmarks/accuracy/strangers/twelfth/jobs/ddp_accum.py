"""Data-parallel regression of molecular properties with a large effective batch."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FEATURES, TARGETS = 512, 16


class Net(nn.Module):
    def __init__(self, width=768, depth=4):
        super().__init__()
        layers = [nn.Linear(FEATURES, width), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Linear(width, TARGETS))

    def forward(self, x):
        return self.body(x)


def shard(rank, world, n=8192):
    g = torch.Generator().manual_seed(0)
    x = (torch.rand(n, FEATURES, generator=g) < 0.1).float()
    w = torch.randn(FEATURES, TARGETS, generator=g) * 0.3
    y = torch.tanh(x @ w) + 0.05 * torch.randn(n, TARGETS, generator=g)
    return x[rank::world], y[rank::world]


def micro_batches(x, y, size):
    while True:
        for idx in torch.randperm(len(x)).split(size):
            if len(idx) == size:
                yield x[idx], y[idx]


class Accumulator:
    def __init__(self, model, rounds, hold):
        self.model, self.rounds, self.hold = model, rounds, hold

    def context(self, k):
        if self.hold and k + 1 < self.rounds:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def accumulate(self, source, criterion):
        total = 0.0
        for k in range(self.rounds):
            x, y = next(source)
            with self.context(k):
                loss = criterion(self.model(x), y) / self.rounds
                loss.backward()
            total += loss.detach()
        return total


def should_stop(start, seconds):
    flag = torch.tensor(float(time.perf_counter() - start > seconds))
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--micro", type=int, default=64)
    ap.add_argument("--rounds", type=int, default=4)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(10)
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    source = micro_batches(*shard(rank, world), args.micro)
    acc = Accumulator(model, args.rounds, hold=args.better)
    criterion = nn.MSELoss()
    laps = []
    start = prev = time.perf_counter()
    while not should_stop(start, args.seconds):
        loss = acc.accumulate(source, criterion)
        opt.step()
        opt.zero_grad()
        if rank == 0 and len(laps) % 25 == 0:
            print(f"step {len(laps)} loss {loss.item():.4f}", flush=True)
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
