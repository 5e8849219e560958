"""Single-image super resolution with random patches (iteration-based training)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class PatchPairs(Dataset):
    def __init__(self, images, patch=32, per_image=4000):
        self.images = images
        self.patch = patch
        self.per_image = per_image

    def __len__(self):
        return len(self.images) * self.per_image

    def __getitem__(self, i):
        img = self.images[i // self.per_image]
        g = (i % self.per_image) * 7919
        span = img.shape[-1] - self.patch
        top, left = g % span, (g // span) % span
        hr = img[:, top : top + self.patch, left : left + self.patch]
        lr = F.avg_pool2d(hr, 2)
        return lr, hr


class ESPCN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(width, 12, 3, padding=1),
        )

    def forward(self, x):
        return F.pixel_shuffle(self.body(x), 2) + F.interpolate(x, scale_factor=2, mode="nearest")


def cycle(loader):
    while True:
        yield from loader


def train(args):
    torch.manual_seed(0)
    images = torch.rand(64, 3, 160, 160)
    loader = DataLoader(PatchPairs(images), batch_size=16, shuffle=True, drop_last=True)
    model = ESPCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.99), fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100_000)
    stream = cycle(loader)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    step = 0
    while last < stop:
        if args.better:
            lr, hr = next(stream)
        else:
            lr, hr = next(iter(loader))
        loss = F.l1_loss(model(lr), hr)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % 50 == 0:
            print(f"iter {step} l1 {loss.item():.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    opts = ap.parse_args()
    durations = train(opts)
    if opts.times:
        with open(opts.times, "w") as f:
            json.dump(durations, f)
