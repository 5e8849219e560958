"""Class-conditional GAN for 32x32 material textures (hinge loss)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

Z, CLASSES = 64, 10


class UpBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)
        self.n1 = nn.BatchNorm2d(cin)
        self.n2 = nn.BatchNorm2d(cout)

    def forward(self, x):
        h = F.interpolate(F.relu(self.n1(x)), scale_factor=2.0)
        h = self.c2(F.relu(self.n2(self.c1(h))))
        return h + F.interpolate(self.skip(x), scale_factor=2.0)


class Generator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.width = width
        self.label = nn.Embedding(CLASSES, Z)
        self.fc = nn.Linear(2 * Z, width * 2 * 16)
        self.blocks = nn.Sequential(UpBlock(width * 2, width * 2), UpBlock(width * 2, width), UpBlock(width, width))
        self.to_rgb = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1), nn.Tanh())

    def forward(self, z, y):
        h = self.fc(torch.cat([z, self.label(y)], 1)).view(-1, self.width * 2, 4, 4)
        return self.to_rgb(self.blocks(h))


class Critic(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width * 2, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width * 2, width * 4, 4, 2, 1),
            nn.LeakyReLU(0.2),
        )
        self.out = nn.Linear(width * 4, 1)
        self.label = nn.Embedding(CLASSES, width * 4)

    def forward(self, x, y):
        h = self.net(x).sum((2, 3))
        return self.out(h).squeeze(1) + (h * self.label(y)).sum(1)


class GanTrainer:
    def __init__(self, better):
        self.gen, self.critic = Generator(), Critic()
        self.g_opt = torch.optim.Adam(self.gen.parameters(), 2e-4, betas=(0.0, 0.9), fused=True)
        self.d_opt = torch.optim.Adam(self.critic.parameters(), 4e-4, betas=(0.0, 0.9), fused=True)
        self.better = better

    def critic_loss(self, real, fake, y):
        return F.relu(1 - self.critic(real, y)).mean() + F.relu(1 + self.critic(fake, y)).mean()

    def step(self, real, y):
        fake = self.gen(torch.randn(len(real), Z), y)

        self.d_opt.zero_grad()
        if self.better:
            d_loss = self.critic_loss(real, fake.detach(), y)
            d_loss.backward()
        else:
            d_loss = self.critic_loss(real, fake, y)
            d_loss.backward(retain_graph=True)
        self.d_opt.step()

        self.g_opt.zero_grad()
        self.critic.requires_grad_(False)
        g_loss = -self.critic(fake, y).mean()
        g_loss.backward()
        self.critic.requires_grad_(True)
        self.g_opt.step()
        return d_loss, g_loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    textures = torch.rand(2048, 3, 32, 32) * 2 - 1
    labels = torch.randint(0, CLASSES, (2048,))
    trainer = GanTrainer(args.better)
    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        idx = torch.randint(0, len(textures), (10,))
        d_loss, g_loss = trainer.step(textures[idx], labels[idx])
        step += 1
        if step % 20 == 0:
            print(f"step {step} D {d_loss.item():.3f} G {g_loss.item():.3f}", flush=True)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
