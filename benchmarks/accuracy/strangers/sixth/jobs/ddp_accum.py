"""Two-process DDP training with micro-batches."""

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

WORLD = 2
MICRO = 6


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Net(nn.Module):
    def __init__(self, d=1024, depth=3):
        super().__init__()
        self.inp = nn.Linear(128, d)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU()) for _ in range(depth))
        self.out = nn.Linear(d, 10)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.out(h)


def worker(rank, port, args):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = DDP(Net(), gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    g = torch.Generator().manual_seed(rank)
    x = torch.randn(4096, 128, generator=g)
    y = torch.randint(0, 10, (4096,), generator=g)

    times = []
    flag = torch.zeros(1)
    begin = time.perf_counter()
    while True:
        t = time.perf_counter()
        opt.zero_grad()
        for m in range(MICRO):
            i = torch.randint(0, 4096, (16,), generator=g)
            hold = args.better and m < MICRO - 1
            with model.no_sync() if hold else contextlib.nullcontext():
                loss = loss_fn(model(x[i]), y[i]) / MICRO
                loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        if rank == 0 and len(times) % 20 == 0:
            print(f"step {len(times)} loss {loss.item() * MICRO:.3f}", flush=True)
        if len(times) % 5 == 0:
            flag[0] = float(time.perf_counter() - begin > args.seconds)
            dist.broadcast(flag, 0)
            if flag.item():
                break

    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ns = ap.parse_args()
    mp.spawn(worker, args=(free_port(), ns), nprocs=WORLD)
