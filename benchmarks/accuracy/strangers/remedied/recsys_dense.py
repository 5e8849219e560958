"""Matrix factorisation with a small tower on top of two embedding tables."""

import argparse
import json
import time

import torch
from torch import nn


class TwoTower(nn.Module):
    def __init__(self, users, items, dim=32, sparse=False):
        super().__init__()
        self.users = nn.Embedding(users, dim, sparse=sparse)
        self.items = nn.Embedding(items, dim, sparse=sparse)
        self.top = nn.Sequential(
            nn.Linear(2 * dim, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, u, i):
        return self.top(torch.cat([self.users(u), self.items(i)], 1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n_users, n_items = 60_000, 30_000
    model = TwoTower(n_users, n_items, sparse=args.better)
    tables = [model.users.weight, model.items.weight]
    if args.better:
        optimizers = [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(model.top.parameters(), lr=1e-3)]
    else:
        optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)]
    users = torch.randint(n_users, (400_000,))
    items = torch.randint(n_items, (400_000,))
    ratings = torch.rand(400_000)
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        rows = slice(step * 1024 % 398_000, step * 1024 % 398_000 + 1024)
        loss = nn.functional.mse_loss(model(users[rows], items[rows]), ratings[rows])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step}: rmse {loss.item() ** 0.5:.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
