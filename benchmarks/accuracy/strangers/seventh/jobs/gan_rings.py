"""Non-saturating GAN on images of rings, drawn on the fly."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

SIZE, LATENT = 32, 64


def rings(n):
    axis = torch.linspace(-1, 1, SIZE)
    r = (axis[:, None].square() + axis[None].square()).sqrt()
    radius = 0.3 + 0.5 * torch.rand(n, 1, 1, 1)
    width = 0.05 + 0.1 * torch.rand(n, 1, 1, 1)
    return torch.exp(-((r - radius) / width).square()) * 2 - 1


class Generator(nn.Module):
    def __init__(self, w=64):
        super().__init__()
        self.w = w
        self.stem = nn.Linear(LATENT, 4 * w * 4 * 4)
        self.net = nn.Sequential(
            nn.BatchNorm2d(4 * w),
            nn.ReLU(True),
            nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1),
            nn.BatchNorm2d(2 * w),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * w, w, 4, 2, 1),
            nn.BatchNorm2d(w),
            nn.ReLU(True),
            nn.ConvTranspose2d(w, w // 2, 4, 2, 1),
            nn.BatchNorm2d(w // 2),
            nn.ReLU(True),
            nn.Conv2d(w // 2, 1, 3, 1, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.stem(z).view(-1, 4 * self.w, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, w, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(w, 2 * w, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * w, 4 * w, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * w * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Trainer:
    def __init__(self, args, batch=16):
        self.args, self.batch = args, batch
        self.g, self.d = Generator(), Discriminator()
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)

    def step_d(self, real):
        fake = self.g(torch.randn(self.batch, LATENT))
        if self.args.better:
            fake = fake.detach()
        loss = F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss

    def step_g(self):
        self.d.requires_grad_(False)
        fake = self.g(torch.randn(self.batch, LATENT))
        loss = F.softplus(-self.d(fake)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        return loss

    def run(self):
        times, begin = [], time.perf_counter()
        last = begin
        while last - begin < self.args.seconds:
            ld = self.step_d(rings(self.batch))
            lg = self.step_g()
            if len(times) % 20 == 0:
                print(f"it {len(times)} d {ld.item():.3f} g {lg.item():.3f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
        return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    times = Trainer(args).run()
    if args.times:
        json.dump(times, open(args.times, "w"))
