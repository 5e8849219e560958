"""Time-series transformer for wearable sensor activity recognition."""

import argparse
import json
import math
import time

import torch
from torch import nn


class Attend(nn.Module):
    def __init__(self, d, heads, drop):
        super().__init__()
        self.mha = nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        h = self.norm(x)
        out, _ = self.mha(h, h, h)
        return x + self.drop(out)


class AttendLean(Attend):
    def forward(self, x):
        h = self.norm(x)
        out, _ = self.mha(h, h, h, need_weights=False)
        return x + self.drop(out)


class Mlp(nn.Module):
    def __init__(self, d, drop):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d), nn.Dropout(drop))

    def forward(self, x):
        return x + self.net(x)


class ActivityTransformer(nn.Module):
    def __init__(self, attend, sensors=9, d=64, heads=4, depth=2, classes=8, length=384):
        super().__init__()
        self.inp = nn.Linear(sensors, d)
        pos = torch.arange(length)[:, None] * torch.exp(torch.arange(0, d, 2) * (-math.log(1e4) / d))
        self.register_buffer("pos", torch.stack([pos.sin(), pos.cos()], -1).flatten(1))
        self.layers = nn.Sequential(*[m for _ in range(depth) for m in (attend(d, heads, 0.0), Mlp(d, 0.1))])
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        h = self.layers(self.inp(x) + self.pos[: x.shape[1]])
        return self.out(h.mean(1))


class Windows:
    def __init__(self, n=256, length=384, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 8, (n,), generator=g)
        t = torch.arange(length) / 50.0
        base = torch.sin(2 * math.pi * (1 + self.y[:, None, None]) * t[None, :, None] / 2)
        self.x = base + 0.5 * torch.randn(n, length, 9, generator=g)

    def __iter__(self):
        while True:
            rows = torch.randint(len(self.x), (8,))
            yield self.x[rows], self.y[rows]


def train(a):
    model = ActivityTransformer(AttendLean if a.better else Attend)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    source, times, right, total = iter(Windows()), [], 0, 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < a.seconds:
        t = time.perf_counter()
        x, y = next(source)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        right += (logits.argmax(1) == y).sum().item()
        total += len(y)
        times.append(time.perf_counter() - t)
    print(f"accuracy {right / total:.3f}")
    return times


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    times = train(a)
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)
