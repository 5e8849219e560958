"""Contrastive learning with a bank of negatives (MoCo-like, made crops)."""

import argparse, copy, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F


class Bank:
    def __init__(self, dim, limit=None):
        self.keys, self.limit = F.normalize(torch.randn(512, dim), dim=1), limit

    def push(self, k):
        self.keys = torch.cat([k, self.keys])
        if self.limit is not None:
            self.keys = self.keys[: self.limit]


def encoder(dim):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, dim),
    )


class MoCo(nn.Module):
    def __init__(self, dim=128, limit=None, m=0.99, tau=0.2):
        super().__init__()
        self.q, self.m, self.tau = encoder(dim), m, tau
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.bank = Bank(dim, limit)

    @torch.no_grad()
    def momentum(self):
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            b.lerp_(a, 1 - self.m)

    def forward(self, x1, x2):
        q = F.normalize(self.q(x1), dim=1)
        with torch.no_grad():
            self.momentum()
            k = F.normalize(self.k(x2), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        logits = torch.cat([pos, q @ self.bank.keys.T], 1) / self.tau
        self.bank.push(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def two_views(pool, bs):
    x = pool[torch.randint(0, len(pool), (bs,))]
    return x + 0.1 * torch.randn_like(x), x.flip(-1) + 0.1 * torch.randn_like(x)


def run(a):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = MoCo(limit=4096 if a.better else None)
    opt = torch.optim.SGD(net.q.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    pool = torch.rand(1000, 3, 16, 16)
    stamps = [time.perf_counter()]
    while stamps[-1] - stamps[0] < a.seconds or len(stamps) < 25:
        loss = net(*two_views(pool, 192))
        opt.zero_grad()
        loss.backward()
        opt.step()
        stamps.append(time.perf_counter())
        if len(stamps) % 50 == 0:
            print(f"{len(stamps)}: {loss.item():.3f}")
    return [b - c for c, b in zip(stamps, stamps[1:])]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    d = run(a)
    if a.times:
        json.dump(d, open(a.times, "w"))
