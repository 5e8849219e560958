"""Two-tower next-song recommender with in-batch negatives."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

SONGS, USERS, DIM = 90_000, 30_000, 32


class Tower(nn.Module):
    def __init__(self, count, sparse):
        super().__init__()
        self.table = nn.Embedding(count, DIM, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.05)
        self.mlp = nn.Sequential(nn.Linear(DIM, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 64))

    def forward(self, ids):
        return F.normalize(self.mlp(self.table(ids)), dim=-1)


def listening_log(n, rng):
    user = rng.integers(0, USERS, n)
    song = (user * 3 + rng.zipf(1.4, n)) % SONGS
    return torch.from_numpy(user), torch.from_numpy(song)


class Recommender(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.users = Tower(USERS, sparse)
        self.songs = Tower(SONGS, sparse)
        self.temperature = 0.1

    def loss(self, user, song):
        scores = self.users(user) @ self.songs(song).T / self.temperature
        return F.cross_entropy(scores, torch.arange(len(user)))


def make_optimizers(model, sparse):
    tables = [model.users.table.weight, model.songs.table.weight]
    dense = [p for p in model.parameters() if all(p is not t for t in tables)]
    if sparse:
        return [torch.optim.SparseAdam(tables, lr=2e-3), torch.optim.Adam(dense, lr=1e-3)]
    return [torch.optim.Adam([{"params": tables, "lr": 2e-3}, {"params": dense}], lr=1e-3)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=14)
    args = ap.parse_args()
    torch.manual_seed(0)
    user, song = listening_log(300_000, np.random.default_rng(0))
    model = Recommender(sparse=args.better)
    optimizers = make_optimizers(model, sparse=args.better)

    times = []
    start = last = time.perf_counter()
    smooth = None
    while last - start < args.seconds:
        rows = torch.randint(len(user), (args.batch,))
        loss = model.loss(user[rows], song[rows])
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        if len(times) % 100 == 0:
            print(f"{len(times)} batches, loss {smooth:.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
