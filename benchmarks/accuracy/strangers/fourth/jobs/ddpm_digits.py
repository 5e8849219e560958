import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# Unofficial re-implementation of DDPM (Ho et al. 2020) on 16x16 digits-like images, MLP-mixer style denoiser

T = 1000
BETA_1, BETA_T = 1e-4, 0.02


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half) / half)
    ang = t[:, None].float() * freqs[None]
    return torch.cat([ang.sin(), ang.cos()], dim=-1)


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tok = nn.Sequential(nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens))
        self.ch = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class EpsNet(nn.Module):
    def __init__(self, dim=48, depth=2):
        super().__init__()
        self.embed = nn.Linear(16, dim)
        self.time = nn.Sequential(nn.Linear(64, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.Sequential(*[MixerBlock(16, dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 16)

    def forward(self, x, t):
        b = x.size(0)
        p = x.view(b, 4, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(b, 16, 16)
        h = self.embed(p) + self.time(timestep_embedding(t, 64))[:, None]
        h = self.out(self.blocks(h))
        return h.view(b, 4, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(b, 1, 16, 16)


class Diffusion:
    def __init__(self, table):
        self.table = table
        self.alpha_bar = torch.cumprod(1 - torch.linspace(BETA_1, BETA_T, T), 0)

    def get_alpha_bar(self, t):
        betas = torch.linspace(BETA_1, BETA_T, T)
        return torch.prod(1.0 - betas[: t + 1])

    def q_sample(self, x0, t, eps):
        if self.table:
            a = self.alpha_bar[t].view(-1, 1, 1, 1)
            return a.sqrt() * x0 + (1 - a).sqrt() * eps
        noisy = []
        for i in range(x0.size(0)):
            a = self.get_alpha_bar(t[i])
            noisy.append(a.sqrt() * x0[i] + (1 - a).sqrt() * eps[i])
        return torch.stack(noisy)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times", type=str, default=None)
    args = parser.parse_args()

    torch.manual_seed(3)
    images = torch.rand(5000, 1, 16, 16) * 2 - 1
    model = EpsNet()
    diffusion = Diffusion(table=args.better)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)

    times = []
    start = time.perf_counter()
    it = 0
    while time.perf_counter() - start < args.seconds:
        s = time.perf_counter()
        x0 = images[torch.randint(0, len(images), (128,))]
        t = torch.randint(0, T, (128,))
        eps = torch.randn_like(x0)
        loss = F.mse_loss(model(diffusion.q_sample(x0, t, eps), t), eps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - s)
        it += 1
        if it % 100 == 0:
            print(f"iter {it} | mse {loss.item():.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
