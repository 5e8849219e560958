"""Neural emulator of a coarse atmospheric model: two-step rollout on a periodic lat-lon grid."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARS = ["t850", "z500", "u500", "v500", "q700", "sp"]
LAT, LON = 32, 64


def reanalysis(hours, rng):
    """Smooth random waves that travel eastwards; (hours, vars, lat, lon)."""
    lat = np.linspace(-np.pi / 2, np.pi / 2, LAT)[:, None]
    lon = np.linspace(0, 2 * np.pi, LON, endpoint=False)[None]
    t = np.arange(hours)[:, None, None]
    fields = []
    for _ in VARS:
        field = np.zeros((hours, LAT, LON))
        for k in range(1, 5):
            phase, speed = rng.uniform(0, 2 * np.pi), rng.uniform(0.02, 0.1)
            field += rng.normal() * np.cos(lat) ** k * np.sin(k * lon - speed * t + phase)
        fields.append(field + 0.02 * rng.normal(size=field.shape))
    data = np.stack(fields, 1)
    mean = data.mean((0, 2, 3), keepdims=True)
    std = data.std((0, 2, 3), keepdims=True)
    return (data - mean) / std


class PeriodicConv(nn.Module):
    def __init__(self, cin, cout, k=3):
        super().__init__()
        self.pad = k // 2
        self.conv = nn.Conv2d(cin, cout, k)

    def forward(self, x):
        x = F.pad(x, (self.pad, self.pad, 0, 0), mode="circular")
        return self.conv(F.pad(x, (0, 0, self.pad, self.pad), mode="replicate"))


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.a, self.b = PeriodicConv(width, width), PeriodicConv(width, width)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


class Emulator(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.lift = PeriodicConv(len(VARS), width, 5)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(depth)])
        self.out = nn.Conv2d(width, len(VARS), 1)

    def forward(self, x):
        return x + self.out(self.blocks(self.lift(x)))


def area_weights(dtype):
    w = torch.cos(torch.linspace(-np.pi / 2, np.pi / 2, LAT + 2, dtype=dtype))[1:-1]
    return (w / w.mean())[None, None, :, None]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=16)
    p.add_argument("--width", type=int, default=24)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--rollout", type=int, default=2)
    args = p.parse_args()

    torch.manual_seed(12)
    rng = np.random.default_rng(12)
    fields = torch.from_numpy(reanalysis(500, rng))
    if args.better:
        fields = fields.float()
    model = Emulator(args.width, args.depth).to(fields.dtype)
    weights = area_weights(fields.dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=2000)

    times, step = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        at = torch.randint(0, len(fields) - args.rollout * 6 - 1, (args.batch,))
        state, loss = fields[at], 0.0
        for k in range(1, args.rollout + 1):
            state = model(state)
            loss = loss + (weights * (state - fields[at + 6 * k]).square()).mean() / args.rollout
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 50 == 0:
            print(f"step {step:5d}  weighted mse {loss.item():.5f}  lr {sched.get_last_lr()[0]:.2e}")
        step += 1
        times.append(time.perf_counter() - t0)

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
