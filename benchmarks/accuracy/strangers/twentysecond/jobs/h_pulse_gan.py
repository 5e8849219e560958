"""GAN that imitates pulse waveforms (photoplethysmogram segments), hinge loss with R1 every few steps."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH, LATENT = 128, 24


def pulses(n, seed=3):
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, LENGTH)
    rate = 2 + 3 * torch.rand(n, 1, generator=g)
    phase = torch.rand(n, 1, generator=g)
    beat = (t * rate + phase) % 1
    notch = 0.3 + 0.2 * torch.rand(n, 1, generator=g)
    wave = torch.exp(-(((beat - 0.2) / 0.08) ** 2)) + 0.5 * torch.exp(-(((beat - 0.2 - notch) / 0.1) ** 2))
    wave = wave + 0.1 * torch.sin(6.28 * 0.7 * t + 6.28 * phase) + 0.02 * torch.randn(n, LENGTH, generator=g)
    return (wave - 0.3).unsqueeze(1)


class Generator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.width = width
        self.inp = nn.Linear(LATENT, 2 * width * (LENGTH // 8))
        self.up = nn.Sequential(
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose1d(2 * width, width, 4, 2, 1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.ConvTranspose1d(width, width, 4, 2, 1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.ConvTranspose1d(width, width // 2, 4, 2, 1),
            nn.ReLU(),
            nn.Conv1d(width // 2, 1, 5, padding=2),
        )

    def forward(self, z):
        return self.up(self.inp(z).view(len(z), 2 * self.width, LENGTH // 8))


class Critic(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width // 2, 5, 2, 2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(width // 2, width, 5, 2, 2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(width, 2 * width, 5, 2, 2),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2 * width * (LENGTH // 8), 1),
        )

    def forward(self, x):
        return self.body(x).squeeze(1)


class Adversary:
    def __init__(self, batch):
        self.batch = batch
        self.gen, self.critic = Generator(), Critic()
        self.opt_g = torch.optim.Adam(self.gen.parameters(), 2e-4, betas=(0.5, 0.99), fused=True)
        self.opt_c = torch.optim.Adam(self.critic.parameters(), 4e-4, betas=(0.5, 0.99), fused=True)
        self.count = 0

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.gen(torch.randn(self.batch, LATENT))
        score = self.critic(torch.cat([real, fake]))
        on_real, on_fake = score.split(self.batch)
        loss = F.relu(1 - on_real).mean() + F.relu(1 + on_fake).mean()
        if self.count % 16 == 0:
            real = real.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.critic(real).sum(), real, create_graph=True)
            loss = loss + 16 * 0.1 * slope.square().sum((1, 2)).mean()
        self.opt_c.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_c.step()
        return loss.detach()

    def gen_step(self):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.gen(torch.randn(self.batch, LATENT))).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.detach()

    def step(self, real):
        c = self.critic_step(real)
        g = self.gen_step()
        self.count += 1
        return c, g


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    data = pulses(8192)
    pair = Adversary(opt.batch)

    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for rows in torch.randperm(len(data)).split(opt.batch):
            c, g = pair.step(data[rows])
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 100 == 0:
                print(f"step {len(times)} critic {c.item():.3f} generator {g.item():.3f}")
            if last - begin >= opt.seconds:
                break
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
