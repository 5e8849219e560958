"""Two-site training of the compressor model: each site is a rank, gradients are averaged over gloo."""

import argparse
import json
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
import torch.nn.functional as F

WORLD = 2


class Gate(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        h = self.norm(x)
        return x + self.out(torch.sigmoid(self.a(h)) * self.b(h))


class CompressorNet(nn.Module):
    def __init__(self, sensors=60, d=96, depth=8):
        super().__init__()
        self.inp = nn.Linear(sensors, d)
        self.body = nn.Sequential(*[Gate(d) for _ in range(depth)])
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        return self.out(self.body(self.inp(x))).squeeze(-1)


def average_each(grads):
    for g in grads:
        dist.all_reduce(g)
        g /= WORLD


def average_flat(grads):
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= WORLD
    torch._foreach_copy_(grads, [f.view_as(g) for f, g in zip(flat.split([g.numel() for g in grads]), grads)])


def site(rank, port, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    net = CompressorNet()
    params = list(net.parameters())
    opt = torch.optim.AdamW(params, lr=1e-3, fused=True)
    g = torch.Generator().manual_seed(100 + rank)
    x_all = torch.randn(8000, 60, generator=g)
    y_all = x_all[:, :5].prod(-1) + 0.1 * torch.randn(8000, generator=g)
    average = average_flat if args.better else average_each
    stop = torch.zeros(1)
    times = []
    dist.barrier()
    t0 = last = time.perf_counter()
    while True:
        idx = torch.randint(0, 8000, (512,), generator=g)
        loss = F.mse_loss(net(x_all[idx]), y_all[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        average([p.grad for p in params])
        opt.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 10 == 0:
            stop.fill_(float(now - t0 > args.seconds))
            dist.broadcast(stop, 0)
            if stop.item():
                break
            if rank == 0 and len(times) % 50 == 0:
                print(f"step {len(times)} mse {loss.item():.4f}", flush=True)
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    args = ap.parse_args()
    mp.spawn(site, args=(free_port(), args), nprocs=WORLD)
