import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    n_users: int = 120_000
    n_items: int = 40_000
    dim: int = 32
    batch: int = 768
    temperature: float = 0.07
    lr: float = 2e-3


class Tower(nn.Module):
    def __init__(self, n, dim, sparse):
        super().__init__()
        self.table = nn.Embedding(n, dim, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.05)
        self.mlp = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, ids):
        return F.normalize(self.mlp(self.table(ids)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, cfg, sparse=False):
        super().__init__()
        self.user = Tower(cfg.n_users, cfg.dim, sparse)
        self.item = Tower(cfg.n_items, cfg.dim, sparse)
        self.t = cfg.temperature

    def forward(self, u, i):
        logits = self.user(u) @ self.item(i).T / self.t
        return F.cross_entropy(logits, torch.arange(len(u)))


def make_optimizers(model, cfg, sparse):
    if not sparse:
        return [torch.optim.Adam(model.parameters(), lr=cfg.lr)]
    tables = [model.user.table.weight, model.item.table.weight]
    known = {id(t) for t in tables}
    rest = [p for p in model.parameters() if id(p) not in known]
    return [torch.optim.SparseAdam(tables, lr=cfg.lr), torch.optim.Adam(rest, lr=cfg.lr)]


def interactions(cfg, n=1_000_000):
    u = torch.randint(0, cfg.n_users, (n,))
    i = (u * 7 + torch.randint(0, 200, (n,))) % cfg.n_items
    return u, i


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(2024)
    cfg = Cfg()
    users, items = interactions(cfg)
    model = TwoTower(cfg, sparse=args.better)
    optimizers = make_optimizers(model, cfg, args.better)
    perm = torch.randperm(len(users))
    times = []
    ptr = 0
    ema = None
    deadline = time.perf_counter() + args.seconds
    while time.perf_counter() < deadline:
        t0 = time.perf_counter()
        sel = perm[ptr : ptr + cfg.batch]
        ptr = ptr + cfg.batch if ptr + 2 * cfg.batch < len(perm) else 0
        loss = model(users[sel], items[sel])
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        ema = loss.item() if ema is None else 0.98 * ema + 0.02 * loss.item()
        times.append(time.perf_counter() - t0)
    print(f"{len(times)} steps, loss {ema:.3f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
