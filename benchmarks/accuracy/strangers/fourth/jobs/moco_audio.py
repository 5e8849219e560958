"""Momentum contrast on pre-computed audio features (own implementation, follows the MoCo v1 pseudo code)."""

import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

K = 49152
DIM = 128
BATCH = 32
TEMP = 0.07


def encoder():
    return nn.Sequential(nn.Linear(400, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, DIM))


class Queue:
    def __init__(self, ring):
        self.keys = F.normalize(torch.randn(K, DIM), dim=1)
        self.ptr = 0
        self.ring = ring

    def push(self, k):
        if self.ring:
            self.keys[self.ptr : self.ptr + len(k)] = k
            self.ptr = (self.ptr + len(k)) % K
        else:
            self.keys = torch.cat([self.keys, k], dim=0)[-K:].clone()


class MoCo:
    def __init__(self, ring, m=0.999):
        self.q = encoder()
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.queue = Queue(ring)
        self.m = m
        self.opt = torch.optim.SGD(self.q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4, fused=True)

    @torch.no_grad()
    def keys(self, x):
        torch._foreach_lerp_(list(self.k.parameters()), list(self.q.parameters()), 1 - self.m)
        return F.normalize(self.k(x), dim=1)

    def step(self, x_q, x_k):
        q = F.normalize(self.q(x_q), dim=1)
        k = self.keys(x_k)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.keys.t()
        logits = torch.cat([pos, neg], 1) / TEMP
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.queue.push(k)
        return loss.detach()


def augment(x):
    return x * (torch.rand_like(x) > 0.1) + 0.05 * torch.randn_like(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    a = p.parse_args()

    torch.manual_seed(77)
    clips = torch.randn(20_000, 400)
    moco = MoCo(ring=a.better)

    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < a.seconds:
        s = time.perf_counter()
        x = clips[torch.randint(0, len(clips), (BATCH,))]
        loss = moco.step(augment(x), augment(x))
        times.append(time.perf_counter() - s)
        if len(times) % 50 == 0:
            print(f"{len(times):6d} infoNCE {loss.item():.3f}")
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
