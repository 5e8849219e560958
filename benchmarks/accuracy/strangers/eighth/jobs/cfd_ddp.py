"""Surrogate for airfoil pressure fields, data parallel over two processes (gloo)."""

import argparse
import contextlib
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUM = 8
MICRO = 8


class Surrogate(nn.Module):
    """Geometry coefficients + flow state -> pressure on a 64 x 24 body-fitted mesh."""

    def __init__(self, width=768):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(40, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 64 * 24),
        )

    def forward(self, x):
        return self.net(x).view(-1, 64, 24)


class Cases:
    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(100 + rank)
        self.mix = torch.randn(40, 64 * 24, generator=torch.Generator().manual_seed(1)) / 6

    def draw(self, n):
        x = torch.randn(n, 40, generator=self.g)
        return x, torch.tanh(x @ self.mix).view(n, 64, 24)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def worker(rank, world, port, args):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DDP(Surrogate())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    cases = Cases(rank)
    flag = torch.zeros(1)
    times = []
    dist.barrier()
    start = time.perf_counter()
    while True:
        t = time.perf_counter()
        opt.zero_grad()
        for k in range(ACCUM):
            local = args.better and k < ACCUM - 1
            with model.no_sync() if local else contextlib.nullcontext():
                x, p = cases.draw(MICRO)
                loss = nn.functional.mse_loss(model(x), p) / ACCUM
                loss.backward()
        opt.step()
        if rank == 0:
            flag[0] = float(time.perf_counter() - start > args.seconds)
        dist.broadcast(flag, 0)
        times.append(time.perf_counter() - t)
        if rank == 0 and len(times) % 10 == 0:
            print("update", len(times), "mse", round(loss.item() * ACCUM, 4), flush=True)
        if flag.item():
            break
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    mp.spawn(worker, args=(2, free_port(), a), nprocs=2)
