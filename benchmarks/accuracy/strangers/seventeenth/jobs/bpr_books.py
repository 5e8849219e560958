"""Book recommendations: BPR with a two-tower net, 8 unseen negatives for each positive."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class UnseenSampler:
    def __init__(self, read, n_books, seed=0):
        self.read = read
        self.catalogue = np.arange(n_books)
        self.rng = np.random.default_rng(seed)

    def draw(self, user, k):
        unseen = np.setdiff1d(self.catalogue, self.read[user])
        return self.rng.choice(unseen, k, replace=True)


class RejectionSampler(UnseenSampler):
    def __init__(self, read, n_books, seed=0):
        super().__init__(read, n_books, seed)
        self.known = [set(r.tolist()) for r in read]

    def draw(self, user, k):
        out, known = [], self.known[user]
        while len(out) < k:
            out += [b for b in self.rng.integers(0, len(self.catalogue), k).tolist() if b not in known]
        return np.array(out[:k])


class TwoTower(nn.Module):
    def __init__(self, users, books, dim=64):
        super().__init__()
        self.users, self.books = nn.Embedding(users, dim), nn.Embedding(books, dim)
        self.user_tower = nn.Sequential(nn.Linear(dim, 1024), nn.ReLU(), nn.Linear(1024, 128))
        self.book_tower = nn.Sequential(nn.Linear(dim, 1024), nn.ReLU(), nn.Linear(1024, 128))

    def forward(self, u, b):
        return torch.einsum("bd,bkd->bk", self.user_tower(self.users(u)), self.book_tower(self.books(b)))


def histories(n_users, n_books, rng):
    return [rng.choice(n_books, rng.integers(15, 60), replace=False) for _ in range(n_users)]


def next_batch(read, sampler, rng, size, k):
    users = rng.integers(0, len(read), size)
    rows = np.empty((size, 1 + k), dtype=np.int64)
    for i, u in enumerate(users):
        rows[i, 0] = rng.choice(read[u])
        rows[i, 1:] = sampler.draw(u, k)
    return torch.from_numpy(users), torch.from_numpy(rows)


def main(seconds, times_file, better):
    torch.manual_seed(0)
    rng = np.random.default_rng(42)
    n_users, n_books = 1500, 3000
    read = histories(n_users, n_books, rng)
    sampler = (RejectionSampler if better else UnseenSampler)(read, n_books)
    model = TwoTower(n_users, n_books)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    times = []
    t_begin = time.perf_counter()
    while time.perf_counter() - t_begin < seconds:
        t0 = time.perf_counter()
        users, books = next_batch(read, sampler, rng, 64, 8)
        scores = model(users, books)
        loss = -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 60 == 0:
            print(f"{len(times):>6} bpr={loss.item():.4f}")
    if times_file:
        with open(times_file, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    n = ap.parse_args()
    main(n.seconds, n.times, n.better)
