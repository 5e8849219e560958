"""Text-to-latent diffusion service: answers requests one batch after another with guided sampling."""

import argparse
import json
import math
import os
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
DENOISE, GUIDE = 8, 4.0


@dataclass
class Request:
    prompt: torch.Tensor
    seed: int


class TextTower(nn.Module):
    def __init__(self, dim=192, depth=4):
        super().__init__()
        self.emb = nn.Embedding(8000, dim)
        self.pos = nn.Parameter(torch.randn(24, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 6, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, ids):
        return self.enc(self.emb(ids) + self.pos)


class CrossBlock(nn.Module):
    def __init__(self, dim, ctx):
        super().__init__()
        self.norm = nn.GroupNorm(8, dim)
        self.c1 = nn.Conv2d(dim, dim, 3, padding=1)
        self.t = nn.Linear(64, dim)
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(ctx, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, t, ctx):
        h = self.c1(F.silu(self.norm(x))) + self.t(t)[..., None, None]
        b, c, hh, ww = h.shape
        q = self.q(h.flatten(2).transpose(1, 2))
        k, v = self.kv(ctx).chunk(2, -1)
        a = self.o(F.scaled_dot_product_attention(q, k, v))
        return x + h + a.transpose(1, 2).view(b, c, hh, ww)


class Denoiser(nn.Module):
    def __init__(self, dim=64, ctx=192):
        super().__init__()
        self.inp = nn.Conv2d(4, dim, 3, padding=1)
        self.blocks = nn.ModuleList(CrossBlock(dim, ctx) for _ in range(4))
        self.out = nn.Conv2d(dim, 4, 3, padding=1)

    def forward(self, x, t, ctx):
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, t, ctx)
        return self.out(h)


def time_features(t, n):
    f = torch.exp(-math.log(1e4) * torch.arange(32) / 32) * t * 1000
    return torch.cat([f.sin(), f.cos()]).expand(n, -1)


class Conditioner:
    """Hands out the text context of a batch, with the empty prompt for the guidance half."""

    def __init__(self, tower, prompts):
        self.tower = tower
        self.ids = torch.cat([torch.zeros_like(prompts), prompts])
        self.ready = None

    def context(self):
        if CURED:
            if self.ready is None:
                self.ready = self.tower(self.ids)
            return self.ready
        return self.tower(self.ids)


class Sampler:
    def __init__(self, tower, denoiser):
        self.tower, self.denoiser = tower, denoiser
        self.grid = torch.linspace(1.0, 0.0, DENOISE + 1).tolist()

    def velocity(self, x, t, cond):
        both = torch.cat([x, x])
        u, c = self.denoiser(both, time_features(t, len(both)), cond.context()).chunk(2)
        return u + GUIDE * (c - u)

    @torch.inference_mode()
    def generate(self, requests):
        cond = Conditioner(self.tower, torch.stack([r.prompt for r in requests]))
        x = torch.stack([torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(r.seed)) for r in requests])
        for a, b in zip(self.grid, self.grid[1:]):
            x = x + (b - a) * self.velocity(x, a, cond)
        return x


def traffic():
    g = torch.Generator().manual_seed(1)
    n = 0
    while True:
        yield [Request(torch.randint(1, 8000, (24,), generator=g), n + i) for i in range(4)]
        n += 4


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    sampler = Sampler(TextTower().eval(), Denoiser().eval())
    queue, times = traffic(), []
    for i in range(STEPS):
        t0 = time.perf_counter()
        out = sampler.generate(next(queue))
        times.append(time.perf_counter() - t0)
        if i % 30 == 0:
            print(f"batch {i} norm {out.norm().item():.2f}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
