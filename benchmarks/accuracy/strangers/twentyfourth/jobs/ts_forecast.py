"""Electricity-load forecasting: a small encoder over 336 hourly tokens, predicting the next 24 hours."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, CONTEXT, HORIZON, DIM, HEADS, LAYERS = 8, 336, 24, 64, 4, 2

torch.manual_seed(9)


def synth_load(hours=60000):
    g = torch.Generator().manual_seed(31)
    t = torch.arange(hours).float()
    base = torch.sin(2 * math.pi * t / 24) + 0.6 * torch.sin(2 * math.pi * t / 168 + 0.4)
    season = 0.8 * torch.cos(2 * math.pi * t / 8760)
    noise = torch.randn(hours, generator=g).cumsum(0) * 0.01 + 0.15 * torch.randn(hours, generator=g)
    x = base + season + noise
    return (x - x.mean()) / x.std()


class Block(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.weights = not better
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        h = self.n1(x)
        h, _ = self.attn(h, h, h, need_weights=self.weights)
        x = x + h
        return x + self.mlp(self.n2(x))


class Forecaster(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.inp = nn.Linear(3, DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(CONTEXT, DIM))
        self.blocks = nn.ModuleList(Block(better) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, HORIZON)

    def forward(self, x):
        h = self.inp(x) + self.pos
        for block in self.blocks:
            h = block(h)
        return self.out(self.norm(h).mean(1))


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    load = synth_load()
    hour = 2 * math.pi * torch.arange(len(load)) / 24
    series = torch.stack([load, hour.sin(), hour.cos()], dim=1)
    windows = series.unfold(0, CONTEXT + HORIZON, 1)  # a view: (N, 3, CONTEXT + HORIZON)
    train = int(0.8 * len(windows))
    model = Forecaster(opt.better)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, 700)
    gen = torch.Generator().manual_seed(33)
    running = 0.0
    for step in steps_of(opt):
        pick = torch.randint(0, train, (BATCH,), generator=gen)
        w = windows[pick]
        x, y = w[:, :, :CONTEXT].transpose(1, 2), w[:, 0, CONTEXT:]
        loss = F.smooth_l1_loss(model(x), y)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        sched.step()
        running += loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {running / 100:.4f}", flush=True)
            running = 0.0


if __name__ == "__main__":
    main()
