#!/usr/bin/env python
"""Hinge GAN for 32x32 game sprites; several critic updates for each generator update."""

import argparse
import json
import time

import torch
from torch import nn


def up(i, o):
    return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


class Generator(nn.Module):
    def __init__(self, z=96, c=128):
        super().__init__()
        self.c = c
        self.fc = nn.Linear(z, c * 16)
        self.body = nn.Sequential(up(c, c), up(c, c // 2), up(c // 2, c // 2))
        self.rgb = nn.Conv2d(c // 2, 3, 3, padding=1)

    def forward(self, z):
        h = self.fc(z).view(-1, self.c, 4, 4).contiguous(memory_format=torch.channels_last)
        return self.rgb(self.body(h)).tanh()


class Critic(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        layers, i = [], 3
        for o in (c, 2 * c, 4 * c):
            layers += [nn.Conv2d(i, o, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
            i = o
        self.body = nn.Sequential(*layers)
        self.score = nn.Linear(i * 16, 1)

    def forward(self, x):
        return self.score(self.body(x).flatten(1)).squeeze(1)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.g = Generator().to(memory_format=torch.channels_last)
        self.d = Critic().to(memory_format=torch.channels_last)
        self.opt_g = torch.optim.Adam(self.g.parameters(), 1e-4, betas=(0.0, 0.9), fused=True)
        self.opt_d = torch.optim.Adam(self.d.parameters(), 4e-4, betas=(0.0, 0.9), fused=True)
        data = torch.rand(2048, 3, 32, 32) * 2 - 1
        self.sprites = data.contiguous(memory_format=torch.channels_last)

    def noise(self):
        return torch.randn(self.args.batch, 96)

    def critic_step(self):
        real = self.sprites[torch.randint(0, len(self.sprites), (self.args.batch,))]
        fake = self.g(self.noise())
        if self.args.better:
            fake = fake.detach()
        loss = (1 - self.d(real)).relu().mean() + (1 + self.d(fake)).relu().mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def generator_step(self):
        self.d.requires_grad_(False)
        loss = -self.d(self.g(self.noise())).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        return loss.detach()

    def fit(self):
        times, begin = [], time.perf_counter()
        while time.perf_counter() - begin < self.args.seconds:
            t0 = time.perf_counter()
            for _ in range(self.args.n_critic):
                loss_d = self.critic_step()
            loss_g = self.generator_step()
            times.append(time.perf_counter() - t0)
            if len(times) % 40 == 0:
                print(f"[{len(times)}] critic {loss_d.item():.3f} gen {loss_g.item():.3f}", flush=True)
        return times


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=16)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--n-critic", type=int, default=3)
    args = p.parse_args()
    torch.manual_seed(2024)
    times = Trainer(args).fit()
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)
