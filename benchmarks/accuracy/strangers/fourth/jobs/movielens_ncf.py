"""Neural collaborative filtering baseline for the thesis (chapter 4), implicit feedback, BCE loss."""

import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    users: int = 110_000
    items: int = 40_000
    dim: int = 32
    batch: int = 1024
    lr: float = 1e-3
    lazy: bool = False


class NCF(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.user = nn.Embedding(c.users, c.dim, sparse=c.lazy)
        self.item = nn.Embedding(c.items, c.dim, sparse=c.lazy)
        nn.init.normal_(self.user.weight, std=0.01)
        nn.init.normal_(self.item.weight, std=0.01)
        self.tower = nn.Sequential(
            nn.Linear(2 * c.dim, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()
        )
        self.final = nn.Linear(64 + c.dim, 1)

    def forward(self, u, i):
        pu, qi = self.user(u), self.item(i)
        mlp = self.tower(torch.cat([pu, qi], -1))
        return self.final(torch.cat([mlp, pu * qi], -1)).squeeze(-1)


class Interactions:
    def __init__(self, c, n=500_000):
        self.u = torch.randint(0, c.users, (n,))
        self.i = (torch.rand(n).pow(3) * c.items).long()
        self.c = c

    def draw(self):
        half = self.c.batch // 2
        k = torch.randint(0, len(self.u), (half,))
        u = self.u[k].repeat(2)
        i = torch.cat([self.i[k], torch.randint(0, self.c.items, (half,))])
        y = torch.cat([torch.ones(half), torch.zeros(half)])
        return u, i, y


def optimizers(model, c):
    tables = [model.user.weight, model.item.weight]
    rest = [p for n, p in model.named_parameters() if n not in ("user.weight", "item.weight")]
    if c.lazy:
        return [torch.optim.SparseAdam(tables, lr=c.lr), torch.optim.Adam(rest, lr=c.lr, fused=True)]
    return [torch.optim.Adam(tables + rest, lr=c.lr, fused=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()

    torch.manual_seed(99)
    c = Config(lazy=args.better)
    model = NCF(c)
    data = Interactions(c)
    opts = optimizers(model, c)

    times = []
    t_begin = time.perf_counter()
    running = None
    while time.perf_counter() - t_begin < args.seconds:
        t0 = time.perf_counter()
        u, i, y = data.draw()
        loss = F.binary_cross_entropy_with_logits(model(u, i), y)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        value = loss.item()
        running = value if running is None else 0.98 * running + 0.02 * value
        times.append(time.perf_counter() - t0)
        if len(times) % 100 == 0:
            print(f"step {len(times)} bce {running:.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
