import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

"""Demand forecast per store. Each "round" draws a few batches of windows from the sales cube."""

HIST, HORIZON = 56, 7
STORES, SKUS, DAYS = 56, 300, 400


def write_cube(path):
    rng = np.random.default_rng(0)
    season = 1 + 0.4 * np.sin(np.arange(DAYS) * 2 * np.pi / 7)
    cube = rng.gamma(2.0, 1.5, size=(STORES, SKUS, DAYS)).astype(np.float32) * season.astype(np.float32)
    np.save(path, cube)


class Windows(IterableDataset):
    def __init__(self, path, rounds_of, batch):
        self.path = path
        self.rounds_of = rounds_of
        self.batch = batch
        self.cube = None

    def open(self):
        cube = np.load(self.path)
        self.mean = cube.mean(-1, keepdims=True)
        self.std = cube.std(-1, keepdims=True) + 1e-3
        self.cube = (cube - self.mean) / self.std

    def __iter__(self):
        if self.cube is None:
            self.open()
        rng = np.random.default_rng()
        span = HIST + HORIZON
        for _ in range(self.rounds_of):
            s = rng.integers(0, STORES, self.batch)
            k = rng.integers(0, SKUS, self.batch)
            t = rng.integers(0, DAYS - span, self.batch)
            w = self.cube[s[:, None], k[:, None], t[:, None] + np.arange(span)[None]]
            w = torch.from_numpy(w)
            yield w[:, :HIST], w[:, HIST:]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(HIST, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU())
        self.back = nn.Linear(d, HIST)
        self.fore = nn.Linear(d, HORIZON)

    def forward(self, x):
        h = self.f(x)
        return x - self.back(h), self.fore(h)


class NBeats(nn.Module):
    def __init__(self, n=4, d=320):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))

    def forward(self, x):
        y = 0
        for b in self.blocks:
            x, f = b(x)
            y = y + f
        return y


class Forecaster:
    def __init__(self, loader, lr=1e-3):
        self.loader = loader
        self.net = NBeats()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr, fused=True)
        self.times = []

    def fit(self, seconds):
        began = last = time.perf_counter()
        rounds = 0
        while True:
            total = torch.zeros(())
            for x, y in self.loader:
                loss = (self.net(x) - y).abs().mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                total += loss.detach()
                now = time.perf_counter()
                self.times.append(now - last)
                last = now
                if now - began > seconds:
                    return
            rounds += 1
            print(f"round {rounds}: mae {float(total) / self.loader.dataset.rounds_of:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    opt = ap.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "cube.npy")
        write_cube(path)
        loader = DataLoader(
            Windows(path, 6, 512), batch_size=None, num_workers=1, prefetch_factor=4, persistent_workers=opt.better
        )
        f = Forecaster(loader)
        f.fit(opt.seconds)
        del loader
    if opt.times:
        with open(opt.times, "w") as fh:
            json.dump(f.times, fh)
