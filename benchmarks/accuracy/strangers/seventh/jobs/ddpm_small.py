"""Class-conditional diffusion on small grayscale tiles, with averaged weights for sampling."""

import argparse
import copy
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


def time_features(t, dim):
    freq = torch.exp(-math.log(10_000) * torch.arange(dim // 2) / (dim // 2))
    a = t[:, None].float() * freq
    return torch.cat([a.sin(), a.cos()], 1)


class Block(nn.Module):
    def __init__(self, dim, cond):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mod = nn.Linear(cond, 2 * dim)
        self.token = nn.Linear(16, 16)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, c):
        scale, shift = self.mod(c).unsqueeze(1).chunk(2, -1)
        h = self.norm(x) * (1 + scale) + shift
        x = x + self.token(h.transpose(1, 2)).transpose(1, 2)
        return x + self.ff(h)


class Denoiser(nn.Module):
    """Mixer over 4x4 patches of a 16x16 tile."""

    def __init__(self, dim=128, depth=6, classes=10):
        super().__init__()
        self.inp, self.out = nn.Linear(16, dim), nn.Linear(dim, 16)
        self.label = nn.Embedding(classes, dim)
        self.time = nn.Sequential(nn.Linear(64, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList([Block(dim, dim) for _ in range(depth)])

    def forward(self, x, t, y):
        b = len(x)
        p = x.view(b, 4, 4, 4, 4).transpose(2, 3).reshape(b, 16, 16)
        c = self.time(time_features(t, 64)) + self.label(y)
        h = self.inp(p)
        for blk in self.blocks:
            h = blk(h, c)
        return self.out(h).view(b, 4, 4, 4, 4).transpose(2, 3).reshape(b, 16, 16)


class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for name in model.state_dict():
            old = self.model.state_dict()[name]
            new = model.state_dict()[name]
            old.copy_(self.decay * old + (1 - self.decay) * new)


class LerpAverage(Average):
    @torch.no_grad()
    def update(self, model):
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - self.decay)


class Schedule:
    def __init__(self, steps=500):
        beta = torch.linspace(1e-4, 0.02, steps)
        self.steps = steps
        self.abar = torch.cumprod(1 - beta, 0)

    def noise(self, x, t, eps):
        a = self.abar[t].view(-1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * eps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    tiles = F.avg_pool2d(torch.randn(4000, 1, 18, 18), 3, stride=1).squeeze(1) * 2
    labels = torch.randint(0, 10, (len(tiles),))
    model, sched = Denoiser(), Schedule()
    ema = (LerpAverage if args.better else Average)(model, 0.999)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    times = []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        i = torch.randint(0, len(tiles), (24,))
        x, y = tiles[i], labels[i]
        t = torch.randint(0, sched.steps, (len(x),))
        eps = torch.randn_like(x)
        loss = F.mse_loss(model(sched.noise(x, t, eps), t, y), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model)
        if len(times) % 50 == 0:
            print("step", len(times), "mse", round(loss.item(), 4))
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
