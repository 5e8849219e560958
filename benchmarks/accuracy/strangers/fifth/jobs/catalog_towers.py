"""Two-tower product matcher; the catalog lives as plain dicts because the rule engine needs it too."""

import argparse
import gc
import json
import random
import time

import torch
from torch import nn
import torch.nn.functional as F

N_PRODUCTS = 20_000
TEXT, ATTR, DIM = 192, 48, 128


class Catalog:
    def __init__(self, n, seed=0):
        rng = random.Random(seed)
        brands = [f"brand{i}" for i in range(300)]
        self.products = [
            {
                "sku": f"P{i:07d}",
                "brand": rng.choice(brands),
                "price": {"eur": rng.randrange(100, 90000) / 100, "vat": 0.21},
                "tags": [rng.randrange(ATTR) for _ in range(4)],
            }
            for i in range(n)
        ]
        g = torch.Generator().manual_seed(seed)
        self.text = torch.randn(n, TEXT, generator=g)
        self.attr = torch.zeros(n, ATTR)
        rows = torch.tensor([p["tags"] for p in self.products])
        self.attr.scatter_(1, rows, 1.0)

    def __len__(self):
        return len(self.products)


class Tower(nn.Module):
    def __init__(self, i, h=512):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, DIM))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Hooks:
    def __init__(self):
        self.after = []

    def register(self, fn):
        self.after.append(fn)
        return fn

    def fire(self, step):
        for fn in self.after:
            fn(step)


def housekeeping(step):
    gc.collect()


class Matcher:
    def __init__(self, catalog, hooks, batch=1280):
        self.catalog, self.hooks, self.batch = catalog, hooks, batch
        self.text, self.attr = Tower(TEXT), Tower(ATTR)
        params = [*self.text.parameters(), *self.attr.parameters()]
        self.opt = torch.optim.AdamW(params, lr=5e-4, fused=True)
        self.target = torch.arange(batch)

    def step(self, n):
        idx = torch.randint(0, len(self.catalog), (self.batch,))
        sim = self.text(self.catalog.text[idx]) @ self.attr(self.catalog.attr[idx]).T / 0.05
        loss = F.cross_entropy(sim, self.target)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.hooks.fire(n)
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    hooks = Hooks()
    if not args.better:
        hooks.register(housekeeping)
    m = Matcher(Catalog(N_PRODUCTS), hooks)

    @hooks.register
    def report(step):
        if step % 50 == 0:
            print("step", step)

    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        m.step(len(times))
        times.append(time.perf_counter() - t)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
