"""MoCo pre-training on histology patches (CPU smoke configuration)."""

import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def encoder(dim):
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1),
        nn.BatchNorm2d(24),
        nn.ReLU(True),
        nn.Conv2d(24, 48, 3, 2, 1),
        nn.BatchNorm2d(48),
        nn.ReLU(True),
        nn.Conv2d(48, 96, 3, 2, 1),
        nn.BatchNorm2d(96),
        nn.ReLU(True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, dim),
    )


class KeyQueue(nn.Module):
    """First-in first-out bank of keys; newest first."""

    def __init__(self, size, dim):
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))

    @torch.no_grad()
    def push(self, k):
        self.keys = torch.roll(self.keys, shifts=k.shape[0], dims=0)
        self.keys[: k.shape[0]] = k


class RingQueue(KeyQueue):
    def __init__(self, size, dim):
        super().__init__(size, dim)
        self.at = 0

    @torch.no_grad()
    def push(self, k):
        n = k.shape[0]
        self.keys[self.at : self.at + n] = k
        self.at = (self.at + n) % self.keys.shape[0]


class MoCo(nn.Module):
    def __init__(self, queue, dim=128, m=0.996, tau=0.2, negatives=4096):
        super().__init__()
        self.q = encoder(dim)
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.queue, self.m, self.tau, self.negatives = queue, m, tau, negatives

    @torch.no_grad()
    def momentum_update(self):
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            b.lerp_(a, 1 - self.m)

    def forward(self, im_q, im_k):
        q = F.normalize(self.q(im_q), dim=1)
        with torch.no_grad():
            self.momentum_update()
            k = F.normalize(self.k(im_k), dim=1)
        start = int(torch.randint(0, self.queue.keys.shape[0] - self.negatives, ()))
        neg = q @ self.queue.keys[start : start + self.negatives].clone().T
        logits = torch.cat([(q * k).sum(1, keepdim=True), neg], 1) / self.tau
        self.queue.push(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def two_views(x):
    flip = x.flip(-1)
    return x + 0.1 * torch.randn_like(x), flip * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1))


def run(args):
    torch.manual_seed(5)
    queue = (RingQueue if args.better else KeyQueue)(131072, 128)
    net = MoCo(queue)
    opt = torch.optim.SGD(net.q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    patches = torch.rand(1024, 3, 64, 64)
    times, deadline = [], time.perf_counter() + args.seconds
    while time.perf_counter() < deadline:
        t = time.perf_counter()
        batch = patches[torch.randint(0, 1024, (32,))]
        loss = net(*two_views(batch))
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 30 == 0:
            print("step", len(times), "contrastive loss", round(loss.item(), 3))
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    out = run(args)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(out, f)
