"""Two-process training of a trajectory forecaster for ships (torchrun, gloo)."""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self, d=64, layers=6):
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.pos = nn.Parameter(torch.randn(1, 32, d) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2))

    def forward(self, x):
        h = self.inp(x) + self.pos
        for block in self.blocks:
            h = block(h)
        return self.out(h[:, -1])


def tracks(n, gen):
    heading = torch.rand(n, 1, generator=gen) * 6.28
    turn = torch.randn(n, 1, generator=gen) * 0.05
    t = torch.arange(33)
    h = heading + turn * t
    v = torch.stack([h.cos(), h.sin()], -1)
    p = v.cumsum(1) * 0.1
    x = torch.cat([p[:, :-1] - p[:, -2:-1], v[:, :-1]], -1)
    return x, p[:, -1] - p[:, -2]


def average_each(params, world):
    for p in params:
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world


def average_flat(params, world):
    flat = torch.cat([p.grad.view(-1) for p in params])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    flat /= world
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=15)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # equal initial weights
    model = Forecaster()
    gen = torch.Generator().manual_seed(100 + rank)
    params = [p for p in model.parameters() if p.requires_grad]
    average = average_flat if args.better else average_each
    opt = torch.optim.Adam(params, 1e-3, fused=True)

    times, stop = [], torch.zeros(1)
    start = last = time.perf_counter()
    for step in range(5000):
        x, y = tracks(32, gen)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        average(params, world)
        opt.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if step % 20 == 19:
            stop.fill_(float(now - start > args.seconds))
            dist.all_reduce(stop)
            if rank == 0:
                print(f"step {step + 1} mse {loss.item():.5f}")
            if stop.item() > 0:
                break
    if args.times and rank == 0:
        json.dump(times, open(args.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
