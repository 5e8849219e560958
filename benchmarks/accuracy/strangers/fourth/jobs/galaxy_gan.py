"""GAN on 1D galaxy spectra (400 bins). Hinge loss, two critic updates per generator update."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BINS = 400
Z = 64


def generator(width=768, depth=4):
    mods, d = [], Z
    for _ in range(depth):
        mods += [nn.Linear(d, width), nn.LeakyReLU(0.2, inplace=True)]
        d = width
    mods.append(nn.Linear(d, BINS))
    return nn.Sequential(*mods)


def critic():
    return nn.Sequential(
        nn.Linear(BINS, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)
    )


class SpectraSource:
    def __init__(self):
        self.grid = torch.linspace(0, 1, BINS)

    def __call__(self, n):
        centre = torch.rand(n, 1) * 0.8 + 0.1
        amp = torch.rand(n, 1) + 0.5
        slope = torch.randn(n, 1) * 0.2
        line = amp * torch.exp(-((self.grid - centre) ** 2) / 0.002)
        return line + slope * self.grid + 0.05 * torch.randn(n, BINS)


class Trainer:
    def __init__(self, better, batch=128):
        self.G, self.D = generator(), critic()
        self.og = torch.optim.Adam(self.G.parameters(), lr=1e-4, betas=(0.0, 0.9), fused=True)
        self.od = torch.optim.Adam(self.D.parameters(), lr=4e-4, betas=(0.0, 0.9), fused=True)
        self.data = SpectraSource()
        self.batch = batch
        self.better = better

    def d_step(self):
        real = self.data(self.batch)
        fake = self.G(torch.randn(self.batch, Z))
        if self.better:
            fake = fake.detach()
        loss = F.relu(1 - self.D(real)).mean() + F.relu(1 + self.D(fake)).mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss

    def g_step(self):
        self.D.requires_grad_(False)
        loss = -self.D(self.G(torch.randn(self.batch, Z))).mean()
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        self.D.requires_grad_(True)
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(8)
    tr = Trainer(args.better)
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        ld = tr.d_step()
        ld2 = tr.d_step()
        lg = tr.g_step()
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"{len(times):5d} D {(ld + ld2).item() / 2:.3f} G {lg.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
