# MoCo v2 style pretraining on small patches
import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Linear(128, dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class MoCo(nn.Module):
    def __init__(self, K, m=0.99, T=0.1, ring=False):
        super().__init__()
        self.K, self.m, self.T, self.ring = K, m, T, ring
        self.q = Encoder()
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(K, 128), dim=1))
        self.ptr = 0

    @torch.no_grad()
    def momentum(self):
        for a, b in zip(self.k.parameters(), self.q.parameters()):
            a.mul_(self.m).add_(b, alpha=1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        if self.ring:
            self.queue[self.ptr : self.ptr + len(keys)] = keys
            self.ptr = (self.ptr + len(keys)) % self.K
        else:
            self.queue = torch.cat([keys, self.queue], dim=0)[: self.K].clone()

    def forward(self, v1, v2):
        q = self.q(v1)
        with torch.no_grad():
            self.momentum()
            k = self.k(v2)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.T
        loss = F.cross_entropy(torch.cat([pos, neg], 1) / self.T, torch.zeros(len(q), dtype=torch.long))
        return loss, k


def view(x):
    x = torch.roll(x, tuple(torch.randint(-3, 4, (2,)).tolist()), (2, 3))
    return x * (0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)) + 0.1 * torch.randn_like(x)


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
ap.add_argument("--queue", type=int, default=65536)
ap.add_argument("--bs", type=int, default=16)
args = ap.parse_args()
torch.manual_seed(21)
data = torch.rand(3000, 3, 32, 32)
model = MoCo(args.queue, ring=args.better)
opt = torch.optim.SGD(model.q.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
times, avg = [], 0.0
t0 = time.perf_counter()
while time.perf_counter() - t0 < args.seconds:
    s = time.perf_counter()
    x = data[torch.randint(0, len(data), (args.bs,))]
    loss, keys = model(view(x), view(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.enqueue(keys)
    avg = 0.95 * avg + 0.05 * loss.item()
    times.append(time.perf_counter() - s)
print("steps", len(times), "loss", round(avg, 3))
if args.times:
    with open(args.times, "w") as fh:
        json.dump(times, fh)
