"""Classifies defect patterns on wafer maps; convolution net, trained from arrays in memory."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

PATTERNS, SIDE = 9, 52


class Residual(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.b = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(ch), nn.BatchNorm2d(ch)

    def forward(self, x):
        y = F.relu(self.na(self.a(x)), inplace=True)
        return F.relu(x + self.nb(self.b(y)), inplace=True)


class WaferNet(nn.Module):
    def __init__(self, widths=(96, 128)):
        super().__init__()
        stages, c = [], 3
        for w in widths:
            stages += [
                nn.Conv2d(c, w, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(w),
                nn.ReLU(inplace=True),
                Residual(w),
            ]
            c = w
        self.body = nn.Sequential(*stages)
        self.head = nn.Linear(c, PATTERNS)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class WaferMaps:
    """All maps as class indices (0 off the wafer, 1 good die, 2 bad die), shuffled once per epoch."""

    def __init__(self, n=3000, batch=32):
        g = torch.Generator().manual_seed(2)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
        r, phi = (xx**2 + yy**2).sqrt(), torch.atan2(yy, xx)
        self.label = torch.randint(0, PATTERNS, (n,), generator=g)
        k = self.label[:, None, None].float()
        bad = torch.rand(n, SIDE, SIDE, generator=g) < 0.05 + 0.5 * torch.sin(k * (phi + 2 * r)).clamp(min=0)
        self.maps = torch.where(r < 1, 1 + bad.long(), 0).to(torch.uint8)
        self.planes = torch.eye(3)
        self.g, self.batch = g, batch

    def epoch(self):
        order = torch.randperm(len(self.label), generator=self.g)
        for idx in order.split(self.batch):
            if len(idx) == self.batch:
                planes = self.planes[self.maps[idx].int()]  # (b, side, side, 3)
                yield planes.permute(0, 3, 1, 2), self.label[idx]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true", help="no effect: there is only one variant")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    data = WaferMaps()
    net = WaferNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, fused=True)
    running = torch.zeros(())

    times, step = [], 0
    end = time.perf_counter() + args.seconds
    t0 = time.perf_counter()
    while t0 < end:
        for image, label in data.epoch():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = net(image)
            loss = F.cross_entropy(logits.float(), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running.lerp_(loss.detach(), 0.05)
            step += 1
            if step % 25 == 0:
                print(f"step {step}: loss {running.item():.4f}")
            now = time.perf_counter()
            times.append(now - t0)
            t0 = now
            if now > end:
                break

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
