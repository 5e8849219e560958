"""Road segmentation from aerial tiles; augmentation on tensors, training on random patches."""

import argparse
import json
import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TILE, PATCH = 384, 96


class Jitter:
    def __call__(self, x):
        x = x * random.uniform(0.8, 1.2) + random.uniform(-0.1, 0.1)
        grey = x.mean(0, keepdim=True)
        x = grey + (x - grey) * random.uniform(0.7, 1.3)
        return x.clamp(0, 1).pow(random.uniform(0.9, 1.1))


class Noise:
    def __call__(self, x):
        return x + 0.03 * torch.randn_like(x)


def crop(x, y):
    i, j = random.randint(0, TILE - PATCH), random.randint(0, TILE - PATCH)
    return x[:, i : i + PATCH, j : j + PATCH], y[i : i + PATCH, j : j + PATCH]


class RoadTiles(Dataset):
    def __init__(self, n=40, crop_first=False):
        self.tiles = torch.randint(0, 256, (n, 3, TILE, TILE), dtype=torch.uint8)
        self.masks = torch.rand(n, TILE, TILE) < 0.1
        self.photometric = [Jitter(), Noise()]
        self.crop_first = crop_first

    def __len__(self):
        return 100_000

    def __getitem__(self, k):
        k %= len(self.tiles)
        x, y = self.tiles[k], self.masks[k]
        if self.crop_first:
            x, y = crop(x, y)
        x = x.float() / 255
        for op in self.photometric:
            x = op(x)
        y = y.float()
        if not self.crop_first:
            x, y = crop(x, y)
        return x.contiguous(), y.contiguous()


net = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=2, dilation=2),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 1, 1),
    nn.Upsample(scale_factor=4, mode="bilinear", align_corners=False),
)


def dice(logit, y):
    p = logit.sigmoid()
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()
torch.manual_seed(0)
random.seed(0)
loader = DataLoader(RoadTiles(crop_first=args.better), batch_size=8, shuffle=True)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
times = []
t0 = t_prev = time.perf_counter()
for x, y in loader:
    logit = net(x).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(logit, y) + dice(logit, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    t = time.perf_counter()
    times.append(t - t_prev)
    t_prev = t
    if t - t0 > args.seconds:
        break
print(f"loss {loss.item():.3f}")
if args.times:
    with open(args.times, "w") as fh:
        json.dump(times, fh)
