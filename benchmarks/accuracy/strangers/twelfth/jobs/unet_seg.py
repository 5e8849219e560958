"""Cell segmentation with a compact U-Net; training telemetry goes to a CSV file."""

import argparse
import csv
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

RES, BATCH = 48, 4


def cells(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    ax = torch.linspace(0, 1, RES)
    mask = torch.zeros(n, 1, RES, RES)
    for _ in range(5):
        c, r = torch.rand(n, 2, generator=g), torch.rand(n, generator=g) * 0.1 + 0.05
        d = (ax[None, :, None] - c[:, 0, None, None]) ** 2 + (ax[None, None] - c[:, 1, None, None]) ** 2
        mask[:, 0] = torch.maximum(mask[:, 0], (d < r[:, None, None] ** 2).float())
    return mask * 0.6 + 0.3 * torch.randn(n, 1, RES, RES, generator=g), mask


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.GroupNorm(4, cout),
        nn.ReLU(),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.GroupNorm(4, cout),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.d1, self.d2, self.d3 = double(1, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.mid = double(4 * c, 8 * c)
        self.u3, self.u2, self.u1 = double(12 * c, 4 * c), double(6 * c, 2 * c), double(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        m = self.mid(F.max_pool2d(c, 2))
        up = lambda t: F.interpolate(t, scale_factor=2, mode="nearest")
        x = self.u3(torch.cat([up(m), c], 1))
        x = self.u2(torch.cat([up(x), b], 1))
        return self.out(self.u1(torch.cat([up(x), a], 1)))


class Telemetry:
    def __init__(self, path, every):
        self.file = open(path, "w", newline="")
        self.rows = csv.writer(self.file)
        self.every = every

    def describe(self, t):
        t = t.detach().flatten()
        lo, hi = t.min().item(), t.max().item()
        return [lo, hi, t.mean().item(), t.std().item()] + torch.histc(t, 30, lo, hi).tolist()

    def record(self, step, model):
        if step % self.every:
            return
        for name, p in model.named_parameters():
            if p.numel() > 1:
                self.rows.writerow([step, name, "w"] + self.describe(p))
                self.rows.writerow([step, name, "g"] + self.describe(p.grad))

    def close(self):
        self.file.close()


def train(args, folder):
    images, masks = cells(400)
    model = UNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    telemetry = Telemetry(os.path.join(folder, "telemetry.csv"), every=100 if args.better else 1)
    laps, step = [], 0
    t0 = prev = time.perf_counter()
    while prev - t0 < args.seconds:
        idx = torch.randint(0, len(images), (BATCH,))
        loss = F.binary_cross_entropy_with_logits(model(images[idx]), masks[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        telemetry.record(step, model)
        step += 1
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    telemetry.close()
    print(f"{step} steps, last loss {loss.item():.4f}")
    return laps


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        laps = train(args, folder)
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)
