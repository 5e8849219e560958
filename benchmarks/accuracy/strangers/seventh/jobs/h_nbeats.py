"""N-BEATS style forecaster on many seasonal series; clipping, cosine schedule, rare snapshots."""

import argparse
import io
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

BACK, AHEAD = 120, 24


class SeriesBank:
    def __init__(self, n=400, length=1200, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length)
        period = torch.randint(6, 60, (n, 1), generator=g)
        trend = 0.002 * torch.randn(n, 1, generator=g) * t
        x = torch.sin(6.2832 * t / period) + trend + 0.2 * torch.randn(n, length, generator=g)
        self.x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        self.cut = length - 200
        self.window = torch.arange(BACK + AHEAD)

    def sample(self, k):
        row = torch.randint(0, len(self.x), (k, 1))
        at = torch.randint(0, self.cut - BACK - AHEAD, (k, 1))
        w = self.x[row, at + self.window]
        return w[:, :BACK], w[:, BACK:]

    def held_out(self):
        w = self.x[:, self.cut : self.cut + BACK + AHEAD]
        return w[:, :BACK], w[:, BACK:]


class Stack(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(BACK, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.theta = nn.Linear(width, BACK + AHEAD)

    def forward(self, x):
        return self.theta(self.body(x)).split([BACK, AHEAD], 1)


class NBeats(nn.Module):
    def __init__(self, stacks=3, width=320):
        super().__init__()
        self.stacks = nn.ModuleList([Stack(width) for _ in range(stacks)])

    def forward(self, x):
        total = 0
        for s in self.stacks:
            back, ahead = s(x)
            x, total = x - back, total + ahead
        return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    bank, model = SeriesBank(), NBeats()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 3000)
    times, snapshot = [], None
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        x, y = bank.sample(512)
        loss = F.smooth_l1_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        opt.step()
        sched.step()
        k = len(times)
        if k % 50 == 0:
            print(f"step {k} loss {loss.item():.4f} norm {norm.item():.3f} lr {sched.get_last_lr()[0]:.2e}")
        if k % 400 == 399:
            snapshot = io.BytesIO()
            torch.save(model.state_dict(), snapshot)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    model.eval()
    with torch.no_grad():
        x, y = bank.held_out()
        print("held-out MAE", round((model(x) - y).abs().mean().item(), 4), "snapshot", snapshot is not None)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
