"""Hinge GAN on procedurally drawn 16x16 sprites."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Generator(nn.Module):
    def __init__(self, z_dim=96, width=768):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(z_dim, width),
            nn.LayerNorm(width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.SiLU(),
            nn.Linear(width, 3 * 16 * 16),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z).view(-1, 3, 16, 16)


class Critic(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.a = nn.Linear(768, width)
        self.b = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, img):
        h = F.leaky_relu(self.a(img.flatten(1)), 0.2)
        h = F.leaky_relu(self.b(h), 0.2)
        return self.out(h).squeeze(1)


def draw_sprites(n, rng):
    """Filled ellipses of random colour."""
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    cx, cy = torch.rand(2, n, 1, 1, generator=rng) - 0.5
    rx, ry = torch.rand(2, n, 1, 1, generator=rng) * 0.6 + 0.2
    mask = (((xx - cx) / rx) ** 2 + ((yy - cy) / ry) ** 2 < 1).float().unsqueeze(1)
    colour = torch.rand(n, 3, 1, 1, generator=rng) * 2 - 1
    return mask * colour


class GanTrainer:
    def __init__(self, opts):
        self.opts = opts
        rng = torch.Generator().manual_seed(11)
        self.sprites = draw_sprites(6000, rng)
        torch.manual_seed(3)
        self.G, self.D = Generator(), Critic()
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=2e-4, betas=(0.0, 0.9))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=4e-4, betas=(0.0, 0.9))
        self.history = {"d": [], "g": []}

    def real_batch(self, n=256):
        pick = torch.randint(0, len(self.sprites), (n,))
        return self.sprites[pick]

    def critic_update(self):
        real = self.real_batch()
        z = torch.randn(len(real), 96)
        fake = self.G(z)
        if self.opts.better:
            fake = fake.detach()
        loss = F.relu(1 - self.D(real)).mean() + F.relu(1 + self.D(fake)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_update(self):
        z = torch.randn(256, 96)
        loss = -self.D(self.G(z)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.G.parameters(), 5.0)
        self.opt_g.step()
        return loss.item()

    def fit(self):
        durations = []
        stop = time.perf_counter() + self.opts.seconds
        it = 0
        while time.perf_counter() < stop:
            began = time.perf_counter()
            self.history["d"].append(self.critic_update())
            self.history["g"].append(self.generator_update())
            if it % 40 == 0:
                with torch.no_grad():
                    sample = self.G(torch.randn(16, 96))
                print(
                    f"it {it} d={self.history['d'][-1]:.3f} g={self.history['g'][-1]:.3f} contrast={sample.std():.3f}",
                    flush=True,
                )
            it += 1
            durations.append(time.perf_counter() - began)
        return durations


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opts = ap.parse_args()
    durations = GanTrainer(opts).fit()
    if opts.times:
        with open(opts.times, "w") as f:
            f.writelines(f"{d}\n" for d in durations)
