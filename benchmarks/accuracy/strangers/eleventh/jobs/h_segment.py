"""Land-cover segmentation of satellite tiles with accelerate, per-class IoU while training."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

NAMES = ["water", "forest", "crops", "built", "bare", "cloud"]


class Tiles(Dataset):
    def __init__(self, n=240, size=64):
        g = torch.Generator().manual_seed(17)
        self.image = torch.rand(n, 4, size, size, generator=g)
        self.mask = torch.randint(0, len(NAMES), (n, size, size), generator=g)

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        image, mask = self.image[i], self.mask[i]
        if torch.rand(()) < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


def block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.d1, self.d2, self.d3 = block(4, c), block(c, 2 * c), block(2 * c, 4 * c)
        self.mid = block(4 * c, 4 * c)
        self.u2, self.u1 = block(6 * c, 2 * c), block(3 * c, c)
        self.head = nn.Conv2d(c, len(NAMES), 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(self.d3(F.max_pool2d(b, 2)))
        y = self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1))
        y = self.u1(torch.cat([F.interpolate(y, scale_factor=2), a], 1))
        return self.head(y)


class Meter:
    """Running intersection and union for each class."""

    def __init__(self):
        self.inter, self.union = [0] * len(NAMES), [0] * len(NAMES)

    @torch.no_grad()
    def update(self, logits, mask):
        pred = logits.argmax(1)
        for c in range(len(NAMES)):
            p, m = pred == c, mask == c
            self.inter[c] += (p & m).sum().item()
            self.union[c] += (p | m).sum().item()

    def result(self):
        return {n: round(i / max(u, 1), 3) for n, i, u in zip(NAMES, self.inter, self.union)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    args = ap.parse_args()

    torch.manual_seed(4)
    accelerator = Accelerator(cpu=True)
    net = UNet().to(memory_format=torch.channels_last)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    loader = DataLoader(Tiles(), batch_size=6, shuffle=True, drop_last=True)
    net, opt, loader = accelerator.prepare(net, opt, loader)

    times, running, begin = [], 0.0, time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        meter, t0 = Meter(), time.perf_counter()
        for image, mask in loader:
            logits = net(image.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(logits, mask)
            opt.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
            running = 0.98 * running + 0.02 * loss.item()
            meter.update(logits, mask)
            now = time.perf_counter()
            times.append(now - t0)
            t0 = now
        accelerator.print(f"{len(times)} steps  loss {running:.3f}  {meter.result()}", flush=True)
    if args.times and accelerator.is_main_process:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
