"""Text-conditioned sketch generator: DDIM sampling for queued prompts."""

import argparse
import math
import time

import torch
from torch import nn
import torch.nn.functional as F

WORDS, TDIM, CH, RES = 3000, 128, 32, 24
STEPS = 8


class PromptEncoder(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.emb = nn.Embedding(WORDS, TDIM)
        layer = nn.TransformerEncoderLayer(TDIM, 4, 4 * TDIM, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.body(self.emb(ids))


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm = nn.GroupNorm(8, ch)
        self.c1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.c2 = nn.Conv2d(ch, ch, 3, padding=1)
        self.emb = nn.Linear(TDIM, ch)

    def forward(self, x, e):
        h = self.c1(F.silu(self.norm(x))) + self.emb(e)[:, :, None, None]
        return x + self.c2(F.silu(h))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv2d(1, CH, 3, padding=1)
        self.blocks = nn.ModuleList(ResBlock(CH) for _ in range(4))
        self.out = nn.Conv2d(CH, 1, 3, padding=1)
        self.query = nn.Linear(TDIM, TDIM)

    def time_features(self, t):
        half = TDIM // 2
        freq = torch.exp(-math.log(1e4) * torch.arange(half) / half)
        ang = t[:, None] * freq[None]
        return torch.cat([ang.sin(), ang.cos()], dim=1)

    def forward(self, x, t, ctx):
        e = self.time_features(t)
        w = torch.softmax((self.query(e).unsqueeze(1) @ ctx.transpose(1, 2)) / math.sqrt(TDIM), -1)
        e = e + (w @ ctx).squeeze(1)
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, e)
        return self.out(F.silu(h))


class Pipeline:
    def __init__(self, hoist):
        self.encoder = PromptEncoder().eval()
        self.denoiser = Denoiser().eval()
        betas = torch.linspace(1e-4, 0.02, 1000)
        self.abar = torch.cumprod(1 - betas, 0)
        self.grid = torch.linspace(999, 0, STEPS + 1).long().tolist()
        self.hoist = hoist

    def predict(self, x, t, ids, ctx=None):
        if ctx is None:
            ctx = self.encoder(ids)
        return self.denoiser(x, torch.full((x.size(0),), float(t)), ctx)

    @torch.no_grad()
    def __call__(self, ids):
        x = torch.randn(ids.size(0), 1, RES, RES)
        ctx = self.encoder(ids) if self.hoist else None
        for t, s in zip(self.grid[:-1], self.grid[1:]):
            eps = self.predict(x, t, ids, ctx)
            a, b = self.abar[t], self.abar[s]
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
            x = b.sqrt() * x0 + (1 - b).sqrt() * eps
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    pipe = Pipeline(hoist=args.better)
    laps = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        prompts = torch.randint(0, WORDS, (4, 32))
        t = time.perf_counter()
        images = pipe(prompts)
        laps.append(time.perf_counter() - t)
    print("batches", len(laps), "last mean", round(images.mean().item(), 4))
    if args.times:
        open(args.times, "w").write("\n".join(str(v) for v in laps) + "\n")


if __name__ == "__main__":
    main()
