"""Data-parallel training written by hand on top of torch.distributed (2 CPU ranks)."""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.utils import parameters_to_vector


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ResMLP(nn.Module):
    def __init__(self, dim=192, depth=10, classes=10):
        super().__init__()
        self.inp = nn.Linear(64, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)) for _ in range(depth)
        )
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = x + b(x)
        return self.out(x)


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world


def average_gradients_flat(model, world):
    grads = [p.grad for p in model.parameters()]
    flat = parameters_to_vector(grads)
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for g in grads:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def worker(rank, world, port, args):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = ResMLP()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    lossf = nn.CrossEntropyLoss()
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(8192, 64, generator=g)
    y = x[:, :10].argmax(1)
    sync = average_gradients_flat if args.better else average_gradients
    times = []
    begin = time.perf_counter()
    go = torch.ones(1)
    while True:
        t = time.perf_counter()
        sel = torch.randint(0, len(x), (128,), generator=g)
        loss = lossf(model(x[sel]), y[sel])
        opt.zero_grad()
        loss.backward()
        sync(model, world)
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 10 == 0:
            go.fill_(float(time.perf_counter() - begin < args.seconds))
            dist.broadcast(go, src=0)
            if go.item() == 0:
                break
    if rank == 0:
        print("steps", len(times), "loss", loss.item())
        if args.times:
            with open(args.times, "w") as fh:
                json.dump(times, fh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    mp.spawn(worker, args=(2, free_port(), args), nprocs=2)
