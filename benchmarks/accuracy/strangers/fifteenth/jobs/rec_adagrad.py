"""Matrix-factorisation-with-a-tower recommender, implicit feedback."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn


class Interactions:
    def __init__(self, users, items, n=200_000, seed=0):
        rng = np.random.default_rng(seed)
        self.u = rng.integers(0, users, n)
        self.i = (items * rng.power(0.4, n)).astype(np.int64)
        self.items, self.rng = items, rng

    def batches(self, size):
        while True:
            order = self.rng.permutation(len(self.u))
            for k in range(0, len(order) - size, size):
                rows = order[k : k + size]
                neg = self.rng.integers(0, self.items, size)
                yield torch.from_numpy(self.u[rows]), torch.from_numpy(self.i[rows]), torch.from_numpy(neg)


class Recommender(nn.Module):
    def __init__(self, users, items, dim=32, sparse=False):
        super().__init__()
        self.user = nn.Embedding(users, dim, sparse=sparse)
        self.item = nn.Embedding(items, dim, sparse=sparse)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)
        self.tower = nn.Sequential(
            nn.Linear(2 * dim, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        return (a * b).sum(1) + self.tower(torch.cat([a, b], 1)).squeeze(1)


def bpr(pos, neg):
    return -nn.functional.logsigmoid(pos - neg).mean()


def fit(model, data, args):
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    stream = data.batches(args.batch)
    times, running = [], 0.7
    t0 = time.perf_counter()
    while True:
        t = time.perf_counter()
        if t - t0 > args.seconds:
            return running, times
        u, i, j = next(stream)
        loss = bpr(model(u, i), model(u, j))
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = 0.99 * running + 0.01 * loss.item()
        times.append(time.perf_counter() - t)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--users", type=int, default=60_000)
    parser.add_argument("--items", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=2048)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Recommender(args.users, args.items, sparse=args.better)
    loss, times = fit(model, Interactions(args.users, args.items), args)
    print(f"bpr {loss:.4f}, {len(times)} updates")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
