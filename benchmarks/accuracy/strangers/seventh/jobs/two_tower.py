"""Two-tower retrieval model with in-batch negatives."""

import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Sizes:
    users: int = 240_000
    items: int = 40_000
    dim: int = 32
    hidden: int = 256
    out: int = 64
    history: int = 6
    batch: int = 320


class Tower(nn.Module):
    def __init__(self, inp, hidden, out):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inp, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out)
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class TwoTower(nn.Module):
    def __init__(self, s, sparse):
        super().__init__()
        self.user_id = nn.Embedding(s.users, s.dim, sparse=sparse)
        self.item_id = nn.Embedding(s.items, s.dim, sparse=sparse)
        self.user_tower = Tower(2 * s.dim, s.hidden, s.out)
        self.item_tower = Tower(s.dim, s.hidden, s.out)

    def forward(self, user, history, item):
        past = self.item_id(history).mean(1)
        u = self.user_tower(torch.cat([self.user_id(user), past], 1))
        v = self.item_tower(self.item_id(item))
        return u @ v.t() / 0.1

    def tables(self):
        return [*self.user_id.parameters(), *self.item_id.parameters()]

    def dense(self):
        return [*self.user_tower.parameters(), *self.item_tower.parameters()]


class Clicks:
    def __init__(self, s, n=300_000):
        g = torch.Generator().manual_seed(11)
        self.s = s
        self.user = (torch.rand(n, generator=g).pow(2) * s.users).long()
        self.item = (torch.rand(n, generator=g).pow(3) * s.items).long()
        self.history = (torch.rand(n, s.history, generator=g).pow(3) * s.items).long()

    def __iter__(self):
        while True:
            for i in torch.randperm(len(self.user)).split(self.s.batch)[:-1]:
                yield self.user[i], self.history[i], self.item[i]


def optimizers(model, sparse):
    if sparse:
        return [torch.optim.SparseAdam(model.tables(), lr=1e-3), torch.optim.Adam(model.dense(), lr=1e-3, fused=True)]
    return [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    s = Sizes()
    model = TwoTower(s, args.better)
    opts = optimizers(model, args.better)
    target = torch.arange(s.batch)
    times = []
    begin = last = time.perf_counter()
    for user, history, item in Clicks(s):
        loss = F.cross_entropy(model(user, history, item), target)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        if len(times) % 50 == 0:
            print(f"batch {len(times)} softmax loss {loss.item():.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
