"""Generates 2-D slices of porous rock (binary-ish micro-CT look alike) with a small convolutional GAN."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

Z = 64
B = 20


class Generator(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.fc = nn.Linear(Z, c * 8 * 8)
        self.up1 = nn.ConvTranspose2d(c, c, 4, 2, 1)
        self.up2 = nn.ConvTranspose2d(c, c // 2, 4, 2, 1)
        self.ref = nn.Conv2d(c // 2, c // 2, 3, padding=1)
        self.out = nn.Conv2d(c // 2, 1, 3, padding=1)
        self.c = c

    def forward(self, z):
        h = F.relu(self.fc(z)).view(-1, self.c, 8, 8)
        h = F.relu(self.up1(h))
        h = F.relu(self.up2(h))
        h = F.relu(self.ref(h))
        return torch.tanh(self.out(h))


class Critic(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, c, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(c, 2 * c, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 2 * c, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2 * c * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def rock(n):
    """thresholded smooth noise, porosity around 0.3"""
    f = F.avg_pool2d(torch.randn(n, 1, 38, 38), 7, stride=1)
    f = f / f.std()
    return torch.tanh(6 * (f - 0.5))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.G, self.D = Generator(), Critic()
        self.og = torch.optim.Adam(self.G.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
        self.od = torch.optim.Adam(self.D.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
        self.pool = rock(1024)

    def fakes(self):
        return self.G(torch.randn(B, Z))

    def critic_step(self):
        real = self.pool[torch.randint(0, len(self.pool), (B,))]
        if self.args.better:
            with torch.no_grad():
                fake = self.fakes()
        else:
            fake = self.fakes()
        loss = F.relu(1 - self.D(real)).mean() + F.relu(1 + self.D(fake)).mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss

    def generator_step(self):
        self.D.requires_grad_(False)
        loss = -self.D(self.fakes()).mean()
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        self.D.requires_grad_(True)
        return loss

    def run(self):
        walls = []
        t0 = prev = time.perf_counter()
        while prev - t0 < self.args.seconds:
            for _ in range(2):
                ld = self.critic_step()
            lg = self.generator_step()
            if len(walls) % 20 == 0:
                print(f"{len(walls):4d} D {ld.item():.3f} G {lg.item():.3f}")
            now = time.perf_counter()
            walls.append(now - prev)
            prev = now
        with torch.no_grad():
            print("porosity", (self.fakes() > 0).float().mean().item())
        return walls


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    walls = Trainer(args).run()
    if args.times:
        with open(args.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
