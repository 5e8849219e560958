"""Fabric texture generator behind an API: few-step latent diffusion, guided by a product description."""

import argparse
import json
import time

import torch
from torch import nn
import torch.nn.functional as F

STEPS, SIDE, CH, TXT = 6, 16, 4, 192


class TextTower(nn.Module):
    def __init__(self, vocab=3000, layers=4, heads=4):
        super().__init__()
        self.tok = nn.Embedding(vocab, TXT)
        self.pos = nn.Parameter(torch.randn(48, TXT) * 0.02)
        layer = nn.TransformerEncoderLayer(
            TXT, heads, 4 * TXT, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.enc(self.tok(ids) + self.pos)


class Cell(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, c), nn.Conv2d(c, c, 3, padding=1)
        self.film = nn.Linear(TXT, 2 * c)
        self.q, self.kv, self.o = nn.Linear(c, c), nn.Linear(TXT, 2 * c), nn.Linear(c, c)

    def forward(self, x, t, text):
        s, b = self.film(t)[:, :, None, None].chunk(2, 1)
        x = x + self.c1(F.silu(self.n1(x) * (1 + s) + b))
        n, c, h, w = x.shape
        q = self.q(x.flatten(2).transpose(1, 2)).view(n, h * w, 4, -1).transpose(1, 2)
        k, v = self.kv(text).view(n, text.shape[1], 2, 4, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.o(a).transpose(1, 2).view(n, c, h, w)


class Denoiser(nn.Module):
    def __init__(self, c=64, depth=3):
        super().__init__()
        self.i, self.o = nn.Conv2d(CH, c, 3, padding=1), nn.Conv2d(c, CH, 3, padding=1)
        self.cells = nn.ModuleList(Cell(c) for _ in range(depth))
        self.time = nn.Embedding(1000, TXT)

    def forward(self, x, t, text):
        e = self.time(t)
        x = self.i(x)
        for cell in self.cells:
            x = cell(x, e, text)
        return self.o(x)


class Service:
    def __init__(self, early):
        self.text, self.unet = TextTower().eval(), Denoiser().eval()
        betas = torch.linspace(1e-4, 0.02, 1000)
        self.abar = torch.cumprod(1 - betas, 0)
        self.ts = torch.linspace(999, 0, STEPS).long()
        self.early = early

    def predict(self, x, t, ids, text):
        if text is None:
            text = self.text(ids)
        both = torch.cat([x, x])
        cond, free = self.unet(both, t.expand(len(both)), text).chunk(2)
        return free + 4.0 * (cond - free)

    @torch.inference_mode()
    def __call__(self, prompt):
        ids = torch.cat([prompt, torch.zeros_like(prompt)])
        text = self.text(ids) if self.early else None
        x = torch.randn(len(prompt), CH, SIDE, SIDE)
        for k, t in enumerate(self.ts):
            eps = self.predict(x, t, ids, text)
            a = self.abar[t]
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            nxt = self.abar[self.ts[k + 1]] if k + 1 < STEPS else torch.ones(())
            x = nxt.sqrt() * x0 + (1 - nxt).sqrt() * eps
        return x


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    service = Service(early=args.better)
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        prompt = torch.randint(1, 3000, (2, 48))
        t = time.perf_counter()
        img = service(prompt)
        times.append(time.perf_counter() - t)
    print(len(times), "requests", "std", round(img.std().item(), 3))
    if args.times:
        json.dump(times, open(args.times, "w"))
