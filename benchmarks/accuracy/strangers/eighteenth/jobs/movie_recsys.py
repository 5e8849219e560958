"""Two-tower style rating model with large user / item tables."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class RatingModel(nn.Module):
    def __init__(self, users, items, dim=32, sparse=False):
        super().__init__()
        self.user = nn.Embedding(users, dim, sparse=sparse)
        self.item = nn.Embedding(items, dim, sparse=sparse)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)
        self.mlp = nn.Sequential(nn.Linear(3 * dim, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user, item):
        u, i = self.user(user), self.item(item)
        return self.mlp(torch.cat([u, i, u * i], dim=1)).squeeze(1)

    def tables(self):
        return [self.user.weight, self.item.weight]


def build_optimizers(model, sparse):
    if sparse:
        return [
            torch.optim.SparseAdam(model.tables(), lr=1e-3),
            torch.optim.Adam(model.mlp.parameters(), lr=1e-3, fused=True),
        ]
    return [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    users, items, batch = 400_000, 100_000, 2048
    model = RatingModel(users, items, sparse=args.better)
    optimizers = build_optimizers(model, sparse=args.better)

    n = 1_000_000
    log_user = torch.randint(0, users, (n,))
    log_item = (torch.rand(n) ** 2 * items).long()
    log_rating = torch.randint(1, 6, (n,)).float()

    times = []
    cursor = 0
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        part = slice(cursor, cursor + batch)
        cursor = (cursor + batch) % (n - batch)
        pred = model(log_user[part], log_item[part])
        loss = F.mse_loss(pred, log_rating[part])
        for opt in optimizers:
            opt.zero_grad()
        loss.backward()
        for opt in optimizers:
            opt.step()
        if len(times) % 100 == 0:
            print(f"step {len(times)} mse {loss.item():.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
