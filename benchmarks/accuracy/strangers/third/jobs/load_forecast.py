"""Electricity load forecasting: sliding windows -> temporal conv net, trained in a small Trainer class."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn


def synthetic_load(hours=24 * 365 * 2, sites=24, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)[:, None]
    phase = rng.uniform(0, 6.28, sites)
    y = np.sin(2 * np.pi * t / 24 + phase) + 0.5 * np.sin(2 * np.pi * t / 168 + phase)
    return y + 0.1 * rng.standard_normal((hours, sites))


class Windows:
    def __init__(self, series, ctx, horizon, better):
        mu, sd = series.mean(0), series.std(0)
        z = (series - mu) / sd
        if better:
            z = z.astype(np.float32)
        self.z = torch.from_numpy(z)
        self.ctx, self.h = ctx, horizon

    def sample(self, n):
        s = torch.randint(0, len(self.z) - self.ctx - self.h, (n,))
        win = self.z[s[:, None] + torch.arange(self.ctx + self.h)]
        return win[:, : self.ctx].transpose(1, 2), win[:, self.ctx :].transpose(1, 2)


class TCN(nn.Module):
    def __init__(self, sites, horizon, width=64):
        super().__init__()
        layers, c = [], sites
        for d in (1, 2, 4, 8):
            layers += [nn.Conv1d(c, width, 3, padding=d, dilation=d), nn.ReLU()]
            c = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, sites * horizon)
        self.shape = (sites, horizon)

    def forward(self, x):
        return self.head(self.body(x).mean(-1)).view(-1, *self.shape)


class Trainer:
    def __init__(self, data, model, lr=1e-3):
        self.data = data
        self.model = model.to(data.z.dtype)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.loss = nn.HuberLoss()
        self.times = []

    def step(self, n):
        x, y = self.data.sample(n)
        loss = self.loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self, seconds, n=32):
        t0 = time.perf_counter()
        while time.perf_counter() - t0 < seconds:
            a = time.perf_counter()
            value = self.step(n)
            self.times.append(time.perf_counter() - a)
            if len(self.times) % 50 == 0:
                print(f"{len(self.times):5d} {value:.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    data = Windows(synthetic_load(), 168, 24, args.better)
    tr = Trainer(data, TCN(24, 24))
    tr.fit(args.seconds)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(tr.times, f)
