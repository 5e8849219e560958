"""Next-basket recommender of the web shop: item2vec-style tower trained on sampled sessions."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ITEMS = 120_000
DIM = 32
HISTORY = 20
BATCH = 256


class SessionTower(nn.Module):
    def __init__(self, rows_only):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM, sparse=rows_only)
        nn.init.normal_(self.items.weight, std=0.05)
        self.tower = nn.Sequential(
            nn.Linear(DIM * HISTORY, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, DIM)
        )

    def forward(self, hist, target):
        q = self.tower(self.items(hist).flatten(1))
        k = self.items(target)
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).T / 0.07


class Sessions:
    """Zipf-like item popularity, sessions drawn on the fly."""

    def __init__(self):
        self.g = torch.Generator().manual_seed(3)

    def draw(self, *shape):
        u = torch.rand(*shape, generator=self.g)
        return (ITEMS * u.pow(2.5)).long().clamp_(max=ITEMS - 1)

    def batch(self):
        return self.draw(BATCH, HISTORY), self.draw(BATCH)


class Fit:
    def __init__(self, rows_only=False):
        self.model = SessionTower(rows_only)
        table = list(self.model.items.parameters())
        rest = list(self.model.tower.parameters())
        if rows_only:
            self.opts = [torch.optim.SparseAdam(table, lr=1e-3), torch.optim.Adam(rest, lr=1e-3, fused=True)]
        else:
            self.opts = [torch.optim.Adam(table + rest, lr=1e-3, fused=True)]
        self.data = Sessions()
        self.truth = torch.arange(BATCH)

    def step(self):
        hist, target = self.data.batch()
        loss = F.cross_entropy(self.model(hist, target), self.truth)
        for o in self.opts:
            o.zero_grad(set_to_none=True)
        loss.backward()
        for o in self.opts:
            o.step()
        return loss


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args(argv)
    torch.manual_seed(0)
    fit = Fit(rows_only=args.better)
    times = []
    t0 = t1 = time.perf_counter()
    while t1 - t0 < args.seconds:
        t = time.perf_counter()
        loss = fit.step()
        t1 = time.perf_counter()
        times.append(t1 - t)
        if len(times) % 50 == 0:
            print("step", len(times), "nce", f"{loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
