"""DCGAN on 32x32 face crops with hinge loss."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LATENT = 64


class Generator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.width = width
        self.fc = nn.Linear(LATENT, width * 4 * 16)
        self.net = nn.Sequential(
            nn.BatchNorm2d(width * 4),
            nn.ReLU(),
            nn.ConvTranspose2d(width * 4, width * 2, 4, 2, 1),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(),
            nn.ConvTranspose2d(width * 2, width * 2, 4, 2, 1),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(),
            nn.Conv2d(width * 2, width * 2, 3, 1, 1),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(),
            nn.ConvTranspose2d(width * 2, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(-1, self.width * 4, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width * 2, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width * 2, width * 4, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(width * 4 * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    faces = torch.rand(1024, 3, 32, 32) * 2 - 1
    generator, critic = Generator(), Discriminator()
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.99), fused=True)
    opt_d = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.99), fused=True)
    batch, d_steps = 16, 2

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        for _ in range(d_steps):
            real = faces[torch.randint(0, len(faces), (batch,))]
            fake = generator(torch.randn(batch, LATENT))
            if args.better:
                fake = fake.detach()
            d_loss = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean()
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()

        critic.requires_grad_(False)
        g_loss = -critic(generator(torch.randn(batch, LATENT))).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        critic.requires_grad_(True)

        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} rounds, d {d_loss.item():.3f} g {g_loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
