"""Text-to-texture service: a caption encoder conditions a small denoiser, sampled with DDIM."""

import argparse
import json
import math
import time

import torch
from torch import nn


class CaptionEncoder(nn.Module):
    def __init__(self, vocab=5000, d=256, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.enc(self.emb(ids)).mean(1)


class ResBlock(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.cond = nn.Linear(d, c)
        self.n1, self.n2 = nn.GroupNorm(8, c), nn.GroupNorm(8, c)

    def forward(self, x, cond):
        h = self.c1(torch.nn.functional.silu(self.n1(x))) + self.cond(cond)[:, :, None, None]
        return x + self.c2(torch.nn.functional.silu(self.n2(h)))


class Denoiser(nn.Module):
    def __init__(self, c=48, d=256, blocks=4):
        super().__init__()
        self.inp, self.out = nn.Conv2d(4, c, 3, padding=1), nn.Conv2d(c, 4, 3, padding=1)
        self.blocks = nn.ModuleList(ResBlock(c, d) for _ in range(blocks))
        self.time = nn.Sequential(nn.Linear(64, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, x, t, text):
        freq = torch.exp(torch.arange(32) * (-math.log(1000) / 31))
        ang = t * freq
        cond = text + self.time(torch.cat([ang.sin(), ang.cos()]))
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, cond)
        return self.out(h)


class Pipeline:
    def __init__(self, steps=12):
        torch.manual_seed(13)
        self.text, self.unet = CaptionEncoder().eval(), Denoiser().eval()
        betas = torch.linspace(1e-4, 0.02, 1000)
        self.alpha = torch.cumprod(1 - betas, 0)
        self.steps = torch.linspace(999, 0, steps).long().tolist()

    def guide(self, ids):
        return lambda x, t: self.unet(x, t, self.text(ids))

    def guide_b(self, ids):
        text = self.text(ids)
        return lambda x, t: self.unet(x, t, text)

    @torch.inference_mode()
    def sample(self, guide, ids, g, size=16):
        noise_of = guide(ids)
        x = torch.randn(len(ids), 4, size, size, generator=g)
        for now, after in zip(self.steps, self.steps[1:] + [None]):
            eps = noise_of(x, now)
            a = self.alpha[now]
            clean = (x - (1 - a).sqrt() * eps) / a.sqrt()
            b = self.alpha[after] if after is not None else torch.tensor(1.0)
            x = b.sqrt() * clean + (1 - b).sqrt() * eps
        return x.clamp(-1, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    pipe = Pipeline()
    guide = pipe.guide_b if args.better else pipe.guide
    g = torch.Generator().manual_seed(2)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        captions = torch.randint(5000, (4, 32), generator=g)
        t = time.perf_counter()
        image = pipe.sample(guide, captions, g)
        times.append(time.perf_counter() - t)
    print(len(times), "requests", round(image.std().item(), 3))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
