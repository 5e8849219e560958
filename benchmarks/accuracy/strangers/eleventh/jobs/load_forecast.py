"""Electricity-load forecasting with a recurrent cell whose transition matrix stays orthogonal."""

import argparse
import contextlib
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal


def make_series(meters=64, hours=2000):
    t = torch.arange(hours).float()
    phase = torch.rand(meters, 1) * 2 * math.pi
    daily = torch.sin(2 * math.pi * t / 24 + phase)
    weekly = 0.5 * torch.sin(2 * math.pi * t / 168 + phase)
    return daily + weekly + 0.1 * torch.randn(meters, hours)


def calendar(hours):
    t = torch.arange(hours).float()
    a, b = 2 * math.pi * t / 24, 2 * math.pi * t / 168
    return torch.stack([a.sin(), a.cos(), b.sin(), b.cos()], dim=1)


class OrthogonalCell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.inp = nn.Linear(inputs, hidden)
        self.rec = orthogonal(nn.Linear(hidden, hidden, bias=False))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, x, h):
        z = self.inp(x) + self.rec(h)
        return torch.sign(z) * F.relu(z.abs() + self.bias)  # modReLU


class Forecaster(nn.Module):
    def __init__(self, hidden=96, horizon=12, better=False):
        super().__init__()
        self.cell = OrthogonalCell(5, hidden)
        self.hidden, self.better = hidden, better
        self.head = nn.Sequential(nn.Linear(hidden, 128), nn.GELU(), nn.Linear(128, horizon * 3))
        self.horizon = horizon

    def forward(self, x):
        scope = parametrize.cached() if self.better else contextlib.nullcontext()
        h = x.new_zeros(x.size(1), self.hidden)
        with scope:
            for frame in x:
                h = self.cell(frame, h)
        return self.head(h).view(-1, self.horizon, 3)


def pinball(pred, target, q=(0.1, 0.5, 0.9)):
    levels = torch.tensor(q)
    diff = target.unsqueeze(-1) - pred
    return torch.maximum(levels * diff, (levels - 1) * diff).mean()


def batches(series, extra, size, context, horizon):
    span = torch.arange(context + horizon)
    while True:
        m = torch.randint(0, series.size(0), (size, 1))
        s = torch.randint(0, series.size(1) - context - horizon, (size, 1)) + span
        y = series[m, s]
        x = torch.cat([y[:, :context, None], extra[s[:, :context]]], dim=-1)
        yield x.transpose(0, 1), y[:, context:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--context", type=int, default=20)
    args = ap.parse_args()

    torch.manual_seed(1)
    series = make_series()
    series = (series - series.mean(1, keepdim=True)) / series.std(1, keepdim=True)
    model = Forecaster(better=args.better)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    feed = batches(series, calendar(series.size(1)), 256, args.context, model.horizon)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        x, y = next(feed)
        loss = pinball(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"step {len(times)}: pinball {loss.item():.4f}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
