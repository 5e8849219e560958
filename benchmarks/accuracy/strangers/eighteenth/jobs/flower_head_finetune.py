"""Transfer learning: train a new classifier head on top of a pretrained ResNet-like trunk."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.short = nn.Conv2d(i, o, 1, stride, bias=False) if stride > 1 or i != o else nn.Identity()

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.short(x))


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layers = nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 32, 2), BasicBlock(32, 64, 2))

    def forward(self, x):
        return self.layers(self.stem(x)).mean(dim=(2, 3))


class FlowerNet(nn.Module):
    def __init__(self, classes=102):
        super().__init__()
        self.backbone = Trunk()
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x):
        return self.head(self.backbone(x))


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    dy, dx = torch.randint(-4, 5, (2,)).tolist()
    return x.roll((dy, dx), dims=(2, 3))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    images = torch.rand(512, 3, 96, 96)
    labels = torch.randint(0, 102, (512,))
    model = FlowerNet()
    if args.better:
        model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    model.train()
    model.backbone.eval()

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        idx = torch.randint(0, len(images), (16,))
        logits = model(augment(images[idx]))
        loss = F.cross_entropy(logits, labels[idx], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(times) % 25 == 0:
            print(f"step {len(times)} loss {loss.item():.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
