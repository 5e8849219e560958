"""Microscopy nucleus segmentation with a small U-Net."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def double_conv(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down1 = double_conv(1, width)
        self.down2 = double_conv(width, width * 2)
        self.bottom = double_conv(width * 2, width * 4)
        self.up2 = double_conv(width * 6, width * 2)
        self.up1 = double_conv(width * 3, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        c = F.interpolate(c, scale_factor=2, mode="nearest")
        b = self.up2(torch.cat([c, b], dim=1))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.head(self.up1(torch.cat([b, a], dim=1)))


def synthetic_cells(n, size=64):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    masks = torch.zeros(n, 1, size, size)
    for _ in range(6):
        c = torch.rand(n, 2) * size
        r = 3 + torch.rand(n) * 6
        d = (yy - c[:, 0, None, None]) ** 2 + (xx - c[:, 1, None, None]) ** 2
        masks[:, 0] = torch.maximum(masks[:, 0], (d < r[:, None, None] ** 2).float())
    return masks * 0.6 + 0.2 * torch.rand_like(masks), masks


def dice_loss(logits, target):
    p = logits.sigmoid()
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    images, masks = synthetic_cells(128)
    model = UNet()
    if args.better:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        idx = torch.randint(0, len(images), (8,))
        x, y = images[idx], masks[idx]
        if args.better:
            x = x.contiguous(memory_format=torch.channels_last)
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y) + dice_loss(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
