"""Momentum contrast on feature vectors with a large memory of negatives."""

import argparse
import copy
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Keys:
    def __init__(self, size, dim):
        self.keys = F.normalize(torch.randn(size, dim), dim=1)

    def push(self, k):
        self.keys = torch.cat([k, self.keys[: -len(k)]])

    def negatives(self):
        return self.keys.clone().detach()


class RingKeys(Keys):
    at = 0

    def push(self, k):
        self.keys[self.at : self.at + len(k)] = k
        self.at = (self.at + len(k)) % len(self.keys)

    def negatives(self):
        return self.keys


class Encoder(nn.Module):
    def __init__(self, inp, hidden, dim):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inp, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.proj = nn.Linear(hidden, dim)

    def forward(self, x):
        return F.normalize(self.proj(self.body(x)), dim=1)


class MoCo(nn.Module):
    def __init__(self, bank, inp=256, hidden=512, dim=96, m=0.99, temp=0.1):
        super().__init__()
        self.q = Encoder(inp, hidden, dim)
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.bank, self.m, self.temp = bank, m, temp
        self.pairs = (list(self.k.parameters()), list(self.q.parameters()))

    @torch.no_grad()
    def momentum(self):
        torch._foreach_lerp_(*self.pairs, 1 - self.m)

    def forward(self, a, b):
        q = self.q(a)
        with torch.no_grad():
            k = self.k(b)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.bank.negatives().t()
        logits = torch.cat([pos, neg], 1) / self.temp
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        return loss, k


class Views:
    def __init__(self, n=8000, dim=256):
        g = torch.Generator().manual_seed(2)
        self.x = torch.randn(n, dim, generator=g)

    def batch(self, size):
        x = self.x[torch.randint(0, len(self.x), (size,))]
        return x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def main():
    args = get_args()
    torch.manual_seed(0)
    bank = (RingKeys if args.better else Keys)(65536, 96)
    model = MoCo(bank)
    opt = torch.optim.SGD(model.q.parameters(), lr=0.05, momentum=0.9, fused=True)
    views = Views()
    times, begin = [], time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        a, b = views.batch(8)
        loss, k = model(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.momentum()
        bank.push(k)
        if len(times) % 50 == 0:
            print("step", len(times), "nce", round(loss.item(), 4))
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
