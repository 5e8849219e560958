"""BPR training of a user/item model with side features for recommendation."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_USERS, N_ITEMS, N_SIDE = 100_000, 180_000, 24


class Interactions:
    """Implicit feedback with popularity-skewed items; samples (user, pos, neg) triples."""

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.users = self.rng.integers(0, N_USERS, n)
        self.items = (N_ITEMS * self.rng.random(n) ** 2.5).astype(np.int64)
        self.side = torch.from_numpy(self.rng.standard_normal((N_ITEMS, N_SIDE), dtype=np.float32))

    def batches(self, size):
        while True:
            order = self.rng.permutation(len(self.users))
            for at in range(0, len(order) - size + 1, size):
                pick = order[at : at + size]
                neg = self.rng.integers(0, N_ITEMS, size)
                yield tuple(map(torch.from_numpy, (self.users[pick], self.items[pick], neg)))


class Tower(nn.Module):
    def __init__(self, n, dim, extra=0, sparse=False):
        super().__init__()
        self.emb = nn.Embedding(n, dim, sparse=sparse)
        nn.init.normal_(self.emb.weight, std=0.05)
        self.mlp = nn.Sequential(
            nn.Linear(dim + extra, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 48)
        )

    def forward(self, ids, extra=None):
        x = self.emb(ids)
        if extra is not None:
            x = torch.cat([x, extra], -1)
        return self.mlp(x)


class TwoTower(nn.Module):
    def __init__(self, dim=32, sparse=False):
        super().__init__()
        self.user = Tower(N_USERS, dim, sparse=sparse)
        self.item = Tower(N_ITEMS, dim, extra=N_SIDE, sparse=sparse)

    def forward(self, users, pos, neg, side):
        u = self.user(users)
        p = self.item(pos, side[pos])
        n = self.item(neg, side[neg])
        return (u * p).sum(-1), (u * n).sum(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    data = Interactions(2_000_000, seed=0)
    model = TwoTower(sparse=args.better)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    times = []
    correct = seen = 0
    start = last = time.perf_counter()
    for step, (users, pos, neg) in enumerate(data.batches(1024)):
        s_pos, s_neg = model(users, pos, neg, data.side)
        loss = -F.logsigmoid(s_pos - s_neg).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        correct += int((s_pos > s_neg).sum())
        seen += len(users)
        if step % 100 == 99:
            print(f"step {step + 1} loss {loss.item():.4f} pairwise acc {correct / seen:.3f}")
            correct = seen = 0
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
