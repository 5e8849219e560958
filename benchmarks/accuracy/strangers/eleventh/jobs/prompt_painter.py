"""Thumbnail painter: text-conditioned latent diffusion with classifier-free guidance, one request at a time."""

import argparse
import json
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, TOKENS, DIM, LATENT = 2000, 48, 192, 4


class TextEncoder(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(TOKENS, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, 6, 4 * DIM, batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.body(self.tok(ids) + self.pos)


class CrossBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm = nn.GroupNorm(8, ch)
        self.conv = nn.Conv2d(ch, ch, 3, padding=1)
        self.time = nn.Linear(64, ch)
        self.attn = nn.MultiheadAttention(ch, 4, kdim=DIM, vdim=DIM, batch_first=True)

    def forward(self, x, t, text):
        h = self.conv(F.silu(self.norm(x))) + self.time(t)[:, :, None, None]
        flat = h.flatten(2).transpose(1, 2)
        flat = flat + self.attn(flat, text, text, need_weights=False)[0]
        return x + flat.transpose(1, 2).reshape(x.shape)


class Denoiser(nn.Module):
    def __init__(self, ch=64, blocks=4):
        super().__init__()
        self.inp = nn.Conv2d(LATENT, ch, 3, padding=1)
        self.blocks = nn.ModuleList([CrossBlock(ch) for _ in range(blocks)])
        self.out = nn.Conv2d(ch, LATENT, 3, padding=1)

    def forward(self, x, t, text):
        freq = torch.exp(-math.log(1e4) * torch.arange(32) / 32)
        emb = torch.cat([torch.sin(t[:, None] * freq), torch.cos(t[:, None] * freq)], 1)
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, emb, text)
        return self.out(h)


class Painter:
    def __init__(self, steps, guidance):
        self.text, self.net = TextEncoder().eval(), Denoiser().eval()
        self.guidance = guidance
        betas = torch.linspace(1e-4, 0.02, 1000)
        self.alpha_bar = torch.cumprod(1 - betas, 0)
        self.schedule = torch.linspace(999, 0, steps).long().tolist()

    def tokenize(self, prompt):
        ids = [1 + hash(w) % (VOCAB - 1) for w in prompt.split()][:TOKENS]
        return torch.tensor(ids + [0] * (TOKENS - len(ids)))

    def condition(self, prompt, negative):
        return self.text(torch.stack([self.tokenize(negative), self.tokenize(prompt)]))

    def noise(self, x, t, text):
        both = self.net(torch.cat([x, x]), torch.full((2,), float(t)), text)
        without, with_text = both.chunk(2)
        return without + self.guidance * (with_text - without)

    @torch.inference_mode()
    def paint(self, prompt, negative="", once=False):
        x = torch.randn(1, LATENT, 16, 16)
        text = self.condition(prompt, negative) if once else None
        for i, t in enumerate(self.schedule):
            eps = self.noise(x, t, text if once else self.condition(prompt, negative))
            a = self.alpha_bar[t]
            b = self.alpha_bar[self.schedule[i + 1]] if i + 1 < len(self.schedule) else torch.ones(())
            clean = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            x = b.sqrt() * clean + (1 - b).sqrt() * eps
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--steps", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    words = "red fox castle river neon oil painting winter city portrait mountain cat ship storm".split()
    painter = Painter(args.steps, guidance=5.0)
    times, served, begin = [], 0, time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        prompt = " ".join(random.choices(words, k=random.randint(4, 20)))
        t0 = time.perf_counter()
        latent = painter.paint(prompt, negative="blurry low quality", once=args.better)
        times.append(time.perf_counter() - t0)
        served += 1
        if served % 50 == 0:
            print(f"{served} thumbnails, last std {latent.std():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
