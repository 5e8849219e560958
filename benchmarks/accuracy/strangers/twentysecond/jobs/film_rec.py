"""Implicit-feedback film recommender, trained on sampled negatives."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class ViewLog:
    """Interactions (user, film) with popularity-skewed films."""

    def __init__(self, users, films, n, seed=0):
        rng = np.random.default_rng(seed)
        self.user = torch.from_numpy(rng.integers(0, users, n))
        self.film = torch.from_numpy((films * rng.power(0.6, n)).astype(np.int64))
        self.hour = torch.from_numpy(rng.integers(0, 24, n))
        self.films = films

    def __len__(self):
        return len(self.user)

    def epoch(self, size, generator):
        for idx in torch.randperm(len(self), generator=generator).split(size):
            negative = torch.randint(self.films, (len(idx),), generator=generator)
            yield self.user[idx], self.hour[idx], self.film[idx], negative


class Tower(nn.Module):
    def __init__(self, inputs, hidden, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class FilmRec(nn.Module):
    def __init__(self, users, films, dim=32, hidden=256, sparse=False):
        super().__init__()
        self.user = nn.Embedding(users, dim, sparse=sparse)
        self.film = nn.Embedding(films, dim, sparse=sparse)
        self.hour = nn.Embedding(24, 8)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.film.weight, std=0.05)
        self.user_tower = Tower(dim + 8, hidden, dim)
        self.film_tower = Tower(dim, hidden, dim)

    def forward(self, user, hour, positive, negative):
        u = self.user_tower(torch.cat([self.user(user), self.hour(hour)], 1))
        both = self.film_tower(self.film(torch.cat([positive, negative])))
        p, n = both.chunk(2)
        return 8 * (u * p).sum(1), 8 * (u * n).sum(1)

    def tables(self):
        return [self.user.weight, self.film.weight]


def make_optimizers(model, lr, sparse):
    tables = model.tables()
    ids = set(map(id, tables))
    rest = [p for p in model.parameters() if id(p) not in ids]
    if sparse:
        return [torch.optim.Adam(rest, lr=lr, fused=True), torch.optim.SparseAdam(tables, lr=lr)]
    return [torch.optim.Adam(rest + tables, lr=lr, fused=True)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--users", type=int, default=160_000)
    p.add_argument("--films", type=int, default=20_000)
    p.add_argument("--batch", type=int, default=1280)
    args = p.parse_args()
    torch.manual_seed(0)

    log = ViewLog(args.users, args.films, 600_000)
    model = FilmRec(args.users, args.films, sparse=args.better)
    optimizers = make_optimizers(model, 1e-3, args.better)
    generator = torch.Generator().manual_seed(4)
    times, mean = [], None
    begin = last = time.perf_counter()
    running = True
    while running:
        for step, batch in enumerate(log.epoch(args.batch, generator)):
            good, bad = model(*batch)
            loss = F.softplus(bad - good).mean()
            for o in optimizers:
                o.zero_grad()
            loss.backward()
            for o in optimizers:
                o.step()
            mean = loss.detach() if mean is None else mean.lerp(loss.detach(), 0.02)
            if step % 100 == 99:
                print(f"{step + 1:5d} bpr {mean.item():.4f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - begin > args.seconds:
                running = False
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
