"""Implicit-feedback movie recommender: matrix factorisation with a BPR loss."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

torch.manual_seed(0)
rng = np.random.default_rng(0)

N_USERS, N_MOVIES, DIM = 160_000, 30_000, 32
BATCH = 2048


def fake_interactions(n=1_000_000):
    users = rng.integers(0, N_USERS, n)
    movies = (N_MOVIES * rng.random(n) ** 2.5).astype(np.int64)
    return torch.from_numpy(users), torch.from_numpy(movies)


class BPRModel(nn.Module):
    def __init__(self, n_users, n_movies, dim, sparse=False):
        super().__init__()
        self.user = nn.Embedding(n_users, dim, sparse=sparse)
        self.movie = nn.Embedding(n_movies, dim, sparse=sparse)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.movie.weight, std=0.05)

    def forward(self, users, pos, neg):
        u = self.user(users)
        p, n = self.movie(torch.stack([pos, neg])).unbind(0)
        return (u * p).sum(-1), (u * n).sum(-1)


model = BPRModel(N_USERS, N_MOVIES, DIM, sparse=args.better)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
users, movies = fake_interactions()

times, losses, step = [], [], 0
start = time.perf_counter()
done = False
while not done:
    order = torch.randperm(len(users))
    for i in range(0, len(order), BATCH):
        t0 = time.perf_counter()
        idx = order[i : i + BATCH]
        negatives = torch.randint(0, N_MOVIES, (len(idx),))
        pos_score, neg_score = model(users[idx], movies[idx], negatives)
        loss = -F.logsigmoid(pos_score - neg_score).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        times.append(time.perf_counter() - t0)
        step += 1
        if step % 100 == 0:
            print(f"step {step} bpr loss {torch.stack(losses[-100:]).mean():.4f}")
        if time.perf_counter() - start > args.seconds:
            done = True
            break

print(f"{step} steps")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
