"""Fraud classifier on tabular transactions with cost-weighted row sampling."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_table(n_rows, n_features, rng):
    x = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    w = rng.standard_normal(n_features, dtype=np.float32)
    y = (x @ w + rng.normal(0, 2, n_rows) > 9.0).astype(np.float32)
    amount = rng.lognormal(3.0, 1.0, n_rows)
    return x, y, amount


class WeightedBatches:
    """Draws rows in proportion to their cost (amount) and the rarity of their class."""

    def __init__(self, x, y, amount, batch_size, rng, indexed=False):
        self.x, self.y = x, y
        self.batch_size = batch_size
        self.rng = rng
        rate = y.mean()
        weight = np.sqrt(amount) * np.where(y > 0, 0.5 / rate, 0.5 / (1 - rate))
        self.p = weight / weight.sum()
        self.cdf = None
        if indexed:
            self.cdf = self.p.cumsum()
            self.cdf /= self.cdf[-1]

    def draw(self):
        if self.cdf is not None:
            return self.cdf.searchsorted(self.rng.random(self.batch_size), side="right")
        return self.rng.choice(len(self.p), size=self.batch_size, p=self.p)

    def __iter__(self):
        while True:
            rows = self.draw()
            yield torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])


class ResidualMLP(nn.Module):
    def __init__(self, n_features, width=192, depth=3):
        super().__init__()
        self.inp = nn.Linear(n_features, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y, amount = make_table(1_500_000, 24, rng)
    batches = WeightedBatches(x, y, amount, 512, rng, indexed=args.better)
    model = ResidualMLP(x.shape[1])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)

    times, hits, total = [], 0, 0
    start = last = time.perf_counter()
    for step, (features, target) in enumerate(batches):
        logits = model(features)
        loss = F.binary_cross_entropy_with_logits(logits, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += int(((logits > 0) == (target > 0.5)).sum())
        total += len(target)
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.4f} acc {hits / total:.3f}")
            hits = total = 0
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
