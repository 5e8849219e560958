"""MoCo-style contrastive pretraining for ECG segments with a negative queue."""

import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, QUEUE = 128, 65536


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 9, 4, 4),
            nn.ReLU(),
            nn.Conv1d(16, 32, 9, 4, 4),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(32, DIM),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class CatQueue:
    def __init__(self):
        self.keys = F.normalize(torch.randn(QUEUE, DIM), dim=1)

    def push(self, keys):
        self.keys = torch.cat([self.keys, keys])[-QUEUE:]


class RingQueue:
    def __init__(self):
        self.keys = F.normalize(torch.randn(QUEUE, DIM), dim=1)
        self.ptr = 0

    def push(self, keys):
        idx = (self.ptr + torch.arange(len(keys))) % QUEUE
        self.keys[idx] = keys
        self.ptr = (self.ptr + len(keys)) % QUEUE


def view(x):
    return x * (0.8 + 0.4 * torch.rand(len(x), 1, 1)) + 0.05 * torch.randn_like(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    segments = torch.randn(4096, 1, 1024)
    query = Encoder()
    key = copy.deepcopy(query).requires_grad_(False)
    queue = RingQueue() if args.better else CatQueue()
    optimizer = torch.optim.SGD(query.parameters(), lr=0.03, momentum=0.9)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        x = segments[torch.randint(0, len(segments), (32,))]
        q = query(view(x))
        with torch.no_grad():
            torch._foreach_lerp_(list(key.parameters()), list(query.parameters()), 0.001)
            k = key(view(x))
        negatives = queue.keys[torch.randint(0, QUEUE, (4096,))]
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], dim=1) / 0.1
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.push(k)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
