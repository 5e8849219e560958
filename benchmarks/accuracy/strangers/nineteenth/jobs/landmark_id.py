"""Landmark recognition with many classes: small residual network, training with top-1, top-5 and mean reciprocal rank."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 8000


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.n1 = nn.BatchNorm2d(cout)
        self.c2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.n2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.n1(self.c1(x)), inplace=True)
        return F.relu(self.n2(self.c2(h)) + self.skip(x), inplace=True)


class LandmarkNet(nn.Module):
    def __init__(self, width=32, embed=96):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.body = nn.Sequential(
            Residual(width, width, 1), Residual(width, width * 2, 2), Residual(width * 2, width * 3, 2)
        )
        self.embed = nn.Linear(width * 3, embed)
        self.classes = nn.Parameter(torch.randn(CLASSES, embed) * 0.05)

    def forward(self, x):
        h = self.body(self.stem(x)).mean((2, 3))
        return 20.0 * F.normalize(self.embed(h), dim=1) @ F.normalize(self.classes, dim=1).T


class RankMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.n, self.top1, self.top5, self.mrr = 0, 0.0, 0.0, 0.0

    def ranks(self, logits, target):
        order = logits.argsort(dim=1, descending=True)
        return (order == target[:, None]).nonzero()[:, 1]

    def update(self, logits, target):
        rank = self.ranks(logits, target)
        self.n += len(target)
        self.top1 += (rank < 1).sum().item()
        self.top5 += (rank < 5).sum().item()
        self.mrr += (1.0 / (rank + 1)).sum().item()

    def __str__(self):
        return f"top-1 {self.top1 / self.n:.4f} top-5 {self.top5 / self.n:.4f} mrr {self.mrr / self.n:.4f}"


class CountingRankMeter(RankMeter):
    def ranks(self, logits, target):
        return (logits > logits.gather(1, target[:, None])).sum(1)


class PhotoStore:
    def __init__(self, n=4000, size=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.photos = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=g)
        self.labels = torch.randint(0, CLASSES, (n,), generator=g)

    def batches(self, size):
        while True:
            order = torch.randperm(len(self.photos))
            for i in range(0, len(order) - size + 1, size):
                idx = order[i : i + size]
                yield self.photos[idx].float().div_(127.5).sub_(1), self.labels[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    batches = PhotoStore().batches(64)
    model = LandmarkNet().to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    meter = (CountingRankMeter if args.better else RankMeter)()

    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        photos, labels = next(batches)
        logits = model(photos.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(logits.detach(), labels)
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} {meter}", flush=True)
            meter.reset()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
