"""Distributed training of a wide residual MLP on molecule fingerprints, gradients accumulated over micro-batches."""

import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Res(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


class Fingerprints(nn.Module):
    def __init__(self, bits=2048, d=512, tasks=12):
        super().__init__()
        self.inp = nn.Linear(bits, d)
        self.body = nn.Sequential(Res(d), Res(d), Res(d))
        self.out = nn.Linear(d, tasks)

    def forward(self, x):
        return self.out(self.body(self.inp(x)))


def molecules(n, rank):
    g = torch.Generator().manual_seed(100 + rank)
    x = (torch.rand(n, 2048, generator=g) < 0.03).float()
    y = (torch.rand(n, 12, generator=g) < 0.3).float()
    return x, y


def train(args, rank):
    torch.manual_seed(0)
    model = DDP(Fingerprints())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = molecules(1024, rank)
    loss_fn = nn.BCEWithLogitsLoss()
    times, go = [], torch.ones(1)
    start = time.perf_counter()
    while True:
        t = time.perf_counter()
        go.fill_(float(t - start < args.seconds))
        dist.broadcast(go, 0)
        if not go.item():
            break
        opt.zero_grad()
        for k in range(args.accumulate):
            rows = torch.randint(len(x), (args.micro,))
            last = k == args.accumulate - 1
            with contextlib.nullcontext() if last or not args.better else model.no_sync():
                loss = loss_fn(model(x[rows]), y[rows]) / args.accumulate
                loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    return times, loss.item() * args.accumulate


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--micro", type=int, default=64)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    times, loss = train(args, rank)
    dist.barrier()
    if rank == 0:
        print(f"{len(times)} updates, bce {loss:.4f}")
        if args.times:
            with open(args.times, "w") as f:
                json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
