"""Tiny text-to-image sampler served as a function; random weights. One request = one image."""

import argparse, json, math, random, time
import torch
from torch import nn
import torch.nn.functional as F


class TextEncoder(nn.Module):
    def __init__(self, vocab=3000, d=192, layers=4, maxlen=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(maxlen, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 6, 4 * d, batch_first=True, norm_first=True)
        self.net = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.net(self.tok(ids) + self.pos[: ids.size(1)])


class Denoiser(nn.Module):
    def __init__(self, c=32, d=192):
        super().__init__()
        self.inp = nn.Conv2d(4, c, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(64, c), nn.SiLU(), nn.Linear(c, c))
        self.res = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1)) for _ in range(4)
        )
        self.q, self.kv = nn.Linear(c, c), nn.Linear(d, 2 * c)
        self.out = nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x, t, ctx):
        h = self.inp(x)
        f = torch.exp(-math.log(1e4) * torch.arange(32) / 32) * t
        h = h + self.time(torch.cat([f.sin(), f.cos()]))[None, :, None, None]
        for k, r in enumerate(self.res):
            h = h + r(h)
            if k == 1:
                q = self.q(h.flatten(2).transpose(1, 2))
                key, val = self.kv(ctx).chunk(2, -1)
                h = h + F.scaled_dot_product_attention(q, key, val).transpose(1, 2).view_as(h)
        return self.out(h)


class Pipeline:
    def __init__(self, better, steps=15):
        torch.manual_seed(0)
        self.text, self.unet = TextEncoder().eval(), Denoiser().eval()
        self.better = better
        self.alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
        self.schedule = torch.linspace(999, 0, steps + 1).long()

    def encode(self, prompt):
        ids = torch.zeros(2, 48, dtype=torch.long)
        for k, w in enumerate(prompt.split()[:48]):
            ids[1, k] = sum(w.encode()) % 3000
        return self.text(ids)

    def predict(self, x, t, ctx, scale=5.0):
        e_un, e_c = self.unet(torch.cat([x, x]), t, ctx).chunk(2)
        return e_un + scale * (e_c - e_un)

    @torch.no_grad()
    def __call__(self, prompt):
        x = torch.randn(1, 4, 16, 16)
        cond = self.encode(prompt) if self.better else None
        for t, s in zip(self.schedule[:-1], self.schedule[1:]):
            ctx = cond if cond is not None else self.encode(prompt)
            eps = self.predict(x, t, ctx)
            a, b = self.alphas[t], self.alphas[s]
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            x = b.sqrt() * x0 + (1 - b).sqrt() * eps
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    pipe, rng = Pipeline(a.better), random.Random(0)
    words = "a red green small castle by the sea in winter light oil painting of fox under moon".split()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < a.seconds:
        prompt = " ".join(rng.choices(words, k=rng.randint(5, 20)))
        t0 = time.perf_counter()
        img = pipe(prompt)
        times.append(time.perf_counter() - t0)
    print(f"{len(times)} images, last std {img.std().item():.3f}")
    if a.times:
        json.dump(times, open(a.times, "w"))


main()
