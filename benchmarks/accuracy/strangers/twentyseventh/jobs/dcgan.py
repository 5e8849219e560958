"""Projection GAN on 32x32 images, both networks under DDP."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
Z, CLASSES, BATCH = 64, 200, 8


def up(i, o):
    return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.ReLU())


def down(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 4, stride=2, padding=1), nn.LeakyReLU(0.2))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls = nn.Embedding(CLASSES, Z)
        self.fc = nn.Linear(2 * Z, 64 * 16)
        self.net = nn.Sequential(up(64, 48), up(48, 32), up(32, 24), nn.Conv2d(24, 3, 3, padding=1), nn.Tanh())

    def forward(self, z, y):
        return self.net(self.fc(torch.cat([z, self.cls(y)], 1)).view(-1, 64, 4, 4))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(down(3, 32), down(32, 96), down(96, 256))
        self.fc = nn.Linear(256 * 16, 1536)
        self.out = nn.Linear(1536, 1)
        self.cls = nn.Embedding(CLASSES, 1536)

    def forward(self, x, y):
        h = F.leaky_relu(self.fc(self.net(x).flatten(1)), 0.2)
        return self.out(h).squeeze(1) + (h * self.cls(y)).sum(1) / 40


class GanTrainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.g, self.d = DDP(Generator()), DDP(Discriminator())
        self.og = torch.optim.SGD(self.g.parameters(), lr=1e-3, momentum=0.5, foreach=False)
        self.od = torch.optim.SGD(self.d.parameters(), lr=1e-3, momentum=0.5, foreach=False)
        self.rng = torch.Generator().manual_seed(rank + 1)
        self.images = torch.rand(512, 3, 32, 32, generator=self.rng) * 2 - 1
        self.labels = torch.randint(0, CLASSES, (512,), generator=self.rng)

    def noise(self):
        z = torch.randn(BATCH, Z, generator=self.rng)
        return z, torch.randint(0, CLASSES, (BATCH,), generator=self.rng)

    def discriminator_turn(self):
        idx = torch.randint(0, 512, (BATCH,), generator=self.rng)
        z, y = self.noise()
        with torch.no_grad():
            fake = self.g(z, y)
        score = self.d(torch.cat([self.images[idx], fake]), torch.cat([self.labels[idx], y]))
        real_s, fake_s = score.chunk(2)
        loss = F.relu(1 - real_s).mean() + F.relu(1 + fake_s).mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss.detach()

    def generator_turn(self):
        z, y = self.noise()
        critic = self.d
        if CURED:
            critic = self.d.module.requires_grad_(False)
        loss = -critic(self.g(z, y), y).mean()
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        if CURED:
            critic.requires_grad_(True)
        return loss.detach()

    def step(self):
        d = self.discriminator_turn()
        g = self.generator_turn()
        return d, g


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    trainer = GanTrainer(rank)
    times = []
    for i in range(STEPS):
        t0 = time.perf_counter()
        d, g = trainer.step()
        if rank == 0 and i % 25 == 0:
            print(f"{i} d {d.item():.3f} g {g.item():.3f}", flush=True)
        times.append(time.perf_counter() - t0)
    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
