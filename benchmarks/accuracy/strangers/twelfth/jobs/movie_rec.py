"""Two-tower movie recommender with in-batch softmax."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

USERS, ITEMS, DIM = 60_000, 50_000, 32


class Tower(nn.Module):
    def __init__(self, count, sparse):
        super().__init__()
        self.table = nn.Embedding(count, DIM, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.05)
        self.mlp = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, ids):
        return F.normalize(self.mlp(self.table(ids)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.user = Tower(USERS, sparse)
        self.item = Tower(ITEMS, sparse)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, u, i):
        return self.scale * self.user(u) @ self.item(i).T


def split_parameters(model):
    tables, rest = [], []
    for name, p in model.named_parameters():
        (tables if "table" in name else rest).append(p)
    return tables, rest


def make_optimizers(model, better):
    if better:
        tables, rest = split_parameters(model)
        return [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(rest, lr=1e-3)]
    return [torch.optim.Adam(model.parameters(), lr=1e-3)]


def interactions(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    users = torch.randint(0, USERS, (n,), generator=g)
    noise = torch.randint(0, 500, (n,), generator=g)
    items = (users * 7 + noise) % ITEMS
    return users, items


def stream(users, items, batch):
    while True:
        order = torch.randperm(len(users))
        for chunk in order.split(batch):
            if len(chunk) == batch:
                yield users[chunk], items[chunk]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--batch", type=int, default=1024)
    args = p.parse_args()
    torch.manual_seed(0)
    users, items = interactions(400_000)
    model = TwoTower(sparse=args.better)
    optimizers = make_optimizers(model, args.better)
    target = torch.arange(args.batch)
    times = []
    t0 = last = time.perf_counter()
    for step, (u, i) in enumerate(stream(users, items, args.batch)):
        loss = F.cross_entropy(model(u, i), target)
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        if step % 100 == 0:
            print(f"{step:6d}  loss {loss.item():.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - t0 > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            print(*times, sep="\n", file=f)


if __name__ == "__main__":
    main()
