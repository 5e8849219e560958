"""Sample small latents from a prompt-conditioned denoiser (DDIM, classifier-free guidance)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class TextEncoder(nn.Module):
    def __init__(self, vocab=4000, dim=192, layers=4):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(1, 48, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.enc(self.tok(ids) + self.pos)


class Block(nn.Module):
    def __init__(self, ch, dim):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, ch), nn.GroupNorm(8, ch)
        self.c1, self.c2 = nn.Conv2d(ch, ch, 3, padding=1), nn.Conv2d(ch, ch, 3, padding=1)
        self.emb = nn.Linear(dim, ch)
        self.q, self.kv, self.o = nn.Linear(ch, ch), nn.Linear(dim, 2 * ch), nn.Linear(ch, ch)

    def forward(self, x, t, ctx):
        h = self.c1(F.silu(self.n1(x))) + self.emb(t)[:, :, None, None]
        x = x + self.c2(F.silu(self.n2(h)))
        b, c, hh, ww = x.shape
        k, v = self.kv(ctx).chunk(2, -1)
        a = F.scaled_dot_product_attention(self.q(x.flatten(2).transpose(1, 2)), k, v)
        return x + self.o(a).transpose(1, 2).reshape(b, c, hh, ww)


class Denoiser(nn.Module):
    def __init__(self, ch=64, dim=192, depth=3):
        super().__init__()
        self.inp = nn.Conv2d(4, ch, 3, padding=1)
        self.blocks = nn.ModuleList(Block(ch, dim) for _ in range(depth))
        self.t = nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.out = nn.Conv2d(ch, 4, 3, padding=1)

    def forward(self, x, t, ctx):
        e = self.t(t[:, None])
        x = self.inp(x)
        for b in self.blocks:
            x = b(x, e, ctx)
        return self.out(x)


class Pipeline:
    def __init__(self, hoist, steps=25, scale=5.0):
        torch.manual_seed(9)
        self.text = TextEncoder().eval()
        self.unet = Denoiser().eval()
        self.hoist, self.steps, self.scale = hoist, steps, scale
        self.abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def guided(self, x, t, ctx):
        e = self.unet(torch.cat([x, x]), torch.full((2 * len(x),), t / 1000.0), ctx)
        cond, free = e.chunk(2)
        return free + self.scale * (cond - free)

    @torch.no_grad()
    def __call__(self, prompts, on_step):
        x = torch.randn(len(prompts), 4, 16, 16)
        both = torch.cat([prompts, torch.zeros_like(prompts)])
        ctx = self.text(both) if self.hoist else None
        ts = torch.linspace(999, 0, self.steps).long().tolist()
        for k, t in enumerate(ts):
            if self.hoist:
                eps = self.guided(x, t, ctx)
            else:
                eps = self.guided(x, t, self.text(both))
            a = self.abar[t]
            a2 = self.abar[ts[k + 1]] if k + 1 < len(ts) else torch.tensor(1.0)
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            x = a2.sqrt() * x0 + (1 - a2).sqrt() * eps
            if not on_step():
                break
        return x


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    pipe = Pipeline(args.better)
    begin = time.perf_counter()
    marks = [begin]

    def tick():
        marks.append(time.perf_counter())
        return marks[-1] - begin < args.seconds

    while marks[-1] - begin < args.seconds:
        z = pipe(torch.randint(1, 4000, (6, 48)), tick)
        print("latent std", round(z.std().item(), 3))
    if args.times:
        json.dump([b - a for a, b in zip(marks, marks[1:])], open(args.times, "w"))
