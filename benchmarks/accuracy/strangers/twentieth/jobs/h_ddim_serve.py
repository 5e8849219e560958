"""Diffusion sampling service: DDIM with classifier-free guidance on small feature maps, PNG answers."""

import argparse
import io
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image

STEPS, CLASSES, PATCHES, PATCH = 8, 10, 64, 4


class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (
            nn.LayerNorm(dim, elementwise_affine=False),
            nn.LayerNorm(dim, elementwise_affine=False),
        )
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.mod = nn.Linear(dim, 4 * dim)

    def forward(self, x, c):
        s1, b1, s2, b2 = self.mod(c)[:, None].chunk(4, -1)
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x) * (1 + s1) + b1).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.norm2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, dim=192, depth=5):
        super().__init__()
        self.inp, self.out = nn.Linear(3 * PATCH * PATCH, dim), nn.Linear(dim, 3 * PATCH * PATCH)
        self.pos = nn.Parameter(torch.randn(PATCHES, dim) * 0.02)
        self.label = nn.Embedding(CLASSES + 1, dim)
        self.time = nn.Sequential(nn.Linear(128, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.register_buffer("freqs", torch.exp(-math.log(10_000) * torch.arange(64) / 64))
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))

    def forward(self, x, t, label):
        angles = t[:, None] * self.freqs
        c = self.time(torch.cat([angles.sin(), angles.cos()], 1)) + self.label(label)
        h = self.inp(x) + self.pos
        for block in self.blocks:
            h = block(h, c)
        return self.out(h)


class Sampler:
    def __init__(self, model, guidance=3.0):
        self.model = model.eval()
        self.guidance = guidance
        alphas = torch.cos(torch.linspace(0, 0.98, STEPS + 1) * math.pi / 2) ** 2
        self.schedule = [(1000.0 * i / STEPS, float(alphas[i]), float(alphas[i - 1])) for i in range(STEPS, 0, -1)]

    @torch.inference_mode()
    def sample(self, labels, seed):
        n = len(labels)
        x = torch.randn(n, PATCHES, 3 * PATCH * PATCH, generator=torch.Generator().manual_seed(seed))
        both = torch.cat([labels, torch.full_like(labels, CLASSES)])
        for t, a, a_prev in self.schedule:
            eps = self.model(torch.cat([x, x]), torch.full((2 * n,), t), both)
            cond, uncond = eps.chunk(2)
            eps = uncond + self.guidance * (cond - uncond)
            clean = ((x - math.sqrt(1 - a) * eps) / math.sqrt(a)).clamp_(-1, 1)
            x = math.sqrt(a_prev) * clean + math.sqrt(1 - a_prev) * eps
        grid = x.view(n, 8, 8, 3, PATCH, PATCH).permute(0, 1, 4, 2, 5, 3).reshape(n, 32, 32, 3)
        return grid.clamp(-1, 1).add(1).mul(127.5).to(torch.uint8).numpy()


def encode_png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    sampler = Sampler(DiT())
    times, sent = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        labels = torch.from_numpy(rng.integers(0, CLASSES, 2))
        images = sampler.sample(labels, seed=len(times))
        sent += sum(len(encode_png(im)) for im in images)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} requests, {sent / 1024:.0f} KiB sent")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
