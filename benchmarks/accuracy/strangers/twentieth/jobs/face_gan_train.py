"""Non-saturating GAN on 32x32 images."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LATENT = 64


class Generator(nn.Module):
    def __init__(self, width=56):
        super().__init__()
        self.fc = nn.Linear(LATENT, 4 * width * 4 * 4)
        self.width = width
        self.net = nn.Sequential(
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(-1, 4 * self.width, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * width * 16, 1),
        )

    def forward(self, x):
        return self.net(x)[:, 0]


class Trainer:
    def __init__(self, batch_size=24, detach=False):
        self.g, self.d = Generator(), Discriminator()
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        self.batch_size = batch_size
        self.detach = detach

    def train_d(self, real):
        fake = self.g(torch.randn(self.batch_size, LATENT))
        if self.detach:
            fake = fake.detach()
        loss = F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss

    def train_g(self):
        self.d.requires_grad_(False)
        fake = self.g(torch.randn(self.batch_size, LATENT))
        loss = F.softplus(-self.d(fake)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        return loss


def make_images(n):
    """Smooth random blobs in [-1, 1]."""
    coarse = torch.randn(n, 3, 6, 6)
    return torch.tanh(F.interpolate(coarse, size=32, mode="bilinear", align_corners=False))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    images = make_images(4096)
    trainer = Trainer(detach=args.better)
    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        real = images[torch.randint(len(images), (trainer.batch_size,))]
        loss_d = trainer.train_d(real)
        loss_g = trainer.train_g()
        if step % 20 == 0:
            print(f"step {step} d {loss_d.item():.3f} g {loss_g.item():.3f}")
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
