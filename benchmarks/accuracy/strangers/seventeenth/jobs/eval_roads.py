"""Evaluation pass of a road-surface segmenter: confusion counts, IoU and pixel accuracy."""

import argparse
import json
import time

import torch
import torch.nn as nn


class Surface(nn.Module):
    def __init__(self, classes, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=4, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv2d(2 * width, classes, 1),
        )

    def forward(self, x):
        return self.body(x)


class Confusion:
    def __init__(self, classes, ignore=255):
        self.counts = torch.zeros(classes, classes, dtype=torch.long)
        self.classes, self.ignore = classes, ignore

    def add(self, truth, guess):
        for t in range(self.classes):
            for g in range(self.classes):
                self.counts[t, g] += ((truth == t) & (guess == g)).sum()

    def iou(self):
        hit = self.counts.diag().double()
        return hit / (self.counts.sum(0) + self.counts.sum(1) - hit).clamp_min(1)

    def accuracy(self):
        return self.counts.diag().sum().item() / max(1, self.counts.sum().item())


class BinnedConfusion(Confusion):
    def add(self, truth, guess):
        ok = truth != self.ignore
        cell = truth[ok] * self.classes + guess[ok]
        self.counts += torch.bincount(cell, minlength=self.classes**2).view(self.classes, -1)


def validation_set(n, classes, size):
    g = torch.Generator().manual_seed(31)
    images = torch.randn(n, 3, size, size, generator=g)
    masks = torch.randint(0, classes, (n, size // 4, size // 4), generator=g)
    masks[torch.rand(masks.shape, generator=g) < 0.05] = 255
    return list(zip(images.split(4), masks.split(4)))


@torch.no_grad()
def evaluate(net, batches, make_meter, seconds):
    net.eval()
    times, stop, passes = [], time.perf_counter() + seconds, 0
    while time.perf_counter() < stop:
        meter = make_meter()
        for images, masks in batches:
            t0 = time.perf_counter()
            meter.add(masks, net(images).argmax(1))
            times.append(time.perf_counter() - t0)
            if time.perf_counter() > stop:
                break
        passes += 1
        print(f"pass {passes}: mIoU {meter.iou().mean():.4f} accuracy {meter.accuracy():.4f}", flush=True)
    return times


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(31)
    classes = 19
    net = Surface(classes)
    kind = BinnedConfusion if a.better else Confusion
    times = evaluate(net, validation_set(80, classes, 192), lambda: kind(classes), a.seconds)
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
