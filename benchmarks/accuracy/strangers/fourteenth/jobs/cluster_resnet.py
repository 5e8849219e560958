#!/usr/bin/env python
"""Small residual network on CIFAR-sized crops, settings taken over from our cluster launcher."""

import argparse
import json
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def setup_environment(seed, better):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if not better:
        torch.set_num_threads(1)
    torch.backends.mkldnn.deterministic = True


class Residual(nn.Module):
    def __init__(self, c_in, c_out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1, stride, bias=False) if stride > 1 or c_in != c_out else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class SmallResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 1, 1)
        self.stages = nn.Sequential(Residual(32, 32), Residual(32, 64, 2), Residual(64, 128, 2))
        self.fc = nn.Linear(128, classes)

    def forward(self, x):
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


def augment(x):
    if random.random() < 0.5:
        x = x.flip(-1)
    dx, dy = random.randint(0, 8), random.randint(0, 8)
    return F.pad(x, (4, 4, 4, 4))[..., dy : dy + 32, dx : dx + 32]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times", type=str)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    setup_environment(args.seed, args.better)
    images = torch.randn(2000, 3, 32, 32)
    labels = torch.randint(0, 10, (2000,))
    net = SmallResNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=5000)
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        idx = torch.randint(0, 2000, (32,))
        loss = F.cross_entropy(net(augment(images[idx])), labels[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        times.append(time.perf_counter() - t0)
    print(f"loss={loss.item():.3f} steps={len(times)}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
