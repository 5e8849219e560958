"""Data-parallel training by hand on two gloo processes."""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)
        self.scale = nn.Parameter(torch.full((d,), 0.1))

    def forward(self, x):
        return x + self.scale * self.down(F.gelu(self.up(self.norm(x))))


class ResMLP(nn.Module):
    def __init__(self, d=64, depth=24, classes=10):
        super().__init__()
        self.inp = nn.Linear(48, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def sync_grads(model, world, packed):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if packed:
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat)
        flat /= world
        torch._foreach_copy_(grads, [c.view_as(g) for c, g in zip(flat.split([g.numel() for g in grads]), grads)])
    else:
        for g in grads:
            dist.all_reduce(g, op=dist.ReduceOp.SUM)
            g /= world


def worker(rank, world, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ResMLP()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    g = torch.Generator().manual_seed(rank)
    X = torch.randn(8000, 48, generator=g)
    Y = (X[:, :10] + 0.3 * X[:, 10:20]).argmax(1)
    times, stop = [], torch.zeros(1)
    t_start = time.perf_counter()
    while True:
        t0 = time.perf_counter()
        idx = torch.randint(0, len(X), (64,), generator=g)
        loss = F.cross_entropy(model(X[idx]), Y[idx])
        opt.zero_grad()
        loss.backward()
        sync_grads(model, world, args.better)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 10 == 0:
            stop[0] = float(time.perf_counter() - t_start > args.seconds)
            dist.broadcast(stop, 0)
            if rank == 0 and len(times) % 50 == 0:
                print(f"step {len(times)} loss {loss.item():.3f}", flush=True)
            if stop.item():
                break
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port, args), nprocs=2)
