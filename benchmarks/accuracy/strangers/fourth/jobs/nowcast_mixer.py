#!/usr/bin/env python
"""Weather nowcasting with a gated MLP over station tokens."""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

STATIONS, HISTORY = 24, 24


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.mix = nn.Linear(STATIONS, STATIONS)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        a, b = self.up(self.norm(x)).chunk(2, dim=-1)
        b = self.mix(b.transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.silu(a) * b)


class Nowcaster(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.inp = nn.Linear(HISTORY, d)
        self.blocks = nn.Sequential(*[GatedBlock(d) for _ in range(depth)])
        self.out = nn.Linear(d, 6)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)))


class Archive:
    def __init__(self, better, hours=5000):
        t = torch.arange(hours).float()
        phase = torch.rand(STATIONS, 1) * 6.28
        self.series = torch.sin(t[None] * 0.26 + phase) + 0.3 * torch.randn(STATIONS, hours)
        self.hours = hours
        self.better = better

    def window(self, k):
        w = self.series[:, k : k + HISTORY + 6]
        return w - w[:, :HISTORY].mean(1, keepdim=True)

    def batch(self, n):
        starts = torch.randint(0, self.hours - HISTORY - 6, (n,)).tolist()
        if self.better:
            items = [self.window(k) for k in starts]
        else:
            with ThreadPoolExecutor(max_workers=16) as pool:
                items = list(pool.map(self.window, starts))
        w = torch.stack(items)
        return w[..., :HISTORY], w[..., HISTORY:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    args = ap.parse_args()

    torch.manual_seed(31)
    model, data = Nowcaster(), Archive(args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2000)

    log = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        tic = time.perf_counter()
        x, y = data.batch(64)
        loss = F.smooth_l1_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        log.append(time.perf_counter() - tic)
        if len(log) % 50 == 0:
            print(f"step {len(log)}  huber {loss.item():.4f}  lr {sched.get_last_lr()[0]:.2e}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(log, f)


if __name__ == "__main__":
    main()
