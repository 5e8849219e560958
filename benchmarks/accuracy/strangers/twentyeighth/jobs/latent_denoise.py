"""Latent diffusion of token grids with self-conditioning, averaged weights and previews."""

import argparse
import copy
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

config = {
    "model": {"tokens": 64, "channels": 8, "width": 192, "depth": 4, "heads": 4},
    "train": {"batch": 8, "lr": 2e-4, "self_condition": 0.5, "clip": 1.0},
    "average": {"every": 10, "decay": 0.99},
    "preview": {"every": 60, "count": 2, "hops": 6},
}


class Denoiser(nn.Module):
    def __init__(self, tokens, channels, width, depth, heads):
        super().__init__()
        self.inp = nn.Linear(2 * channels, width)
        self.place = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.out = nn.Linear(width, channels)
        self.register_buffer("freq", torch.exp(torch.linspace(0, math.log(1000), 32)))

    def forward(self, x, t, guess):
        ang = t[:, None] * self.freq
        h = self.inp(torch.cat([x, guess], -1)) + self.place
        h = h + self.time(torch.cat([ang.sin(), ang.cos()], -1))[:, None]
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


class Experiment:
    def __init__(self, cfg):
        torch.manual_seed(0)
        self.cfg = cfg
        self.net = Denoiser(**cfg["model"])
        self.slow = copy.deepcopy(self.net).requires_grad_(False)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg["train"]["lr"], fused=True)
        self.latents = torch.randn(2000, cfg["model"]["tokens"], cfg["model"]["channels"])
        self.coin = random.Random(9)

    def noised(self):
        x = self.latents[torch.randint(0, 2000, (self.cfg["train"]["batch"],))]
        t = torch.rand(len(x))
        a = torch.cos(t * math.pi / 2)[:, None, None]
        return x, t, a * x + (1 - a * a).sqrt() * torch.randn_like(x)

    def train_step(self):
        c = self.cfg["train"]
        x, t, z = self.noised()
        guess = torch.zeros_like(x)
        if self.coin.random() < c["self_condition"]:
            with torch.no_grad():
                guess = self.net(z, t, guess)
        loss = F.mse_loss(self.net(z, t, guess), x)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), c["clip"])
        self.opt.step()
        return loss

    def average(self):
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.slow.parameters()),
                list(self.net.parameters()),
                1 - self.cfg["average"]["decay"] ** self.cfg["average"]["every"],
            )

    @torch.no_grad()
    def preview(self):
        p, m = self.cfg["preview"], self.cfg["model"]
        z = torch.randn(p["count"], m["tokens"], m["channels"])
        guess = torch.zeros_like(z)
        for t in torch.linspace(0.98, 0.1, p["hops"]):
            guess = self.slow(z, t.expand(len(z)), guess)
            a = torch.cos((t - 0.1).clamp(min=0) * math.pi / 2)
            z = a * guess + (1 - a * a).sqrt() * torch.randn_like(z)
        return guess.std().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(1)
    exp, rows = Experiment(config), []
    for step in range(1, int(os.environ.get("STEPS", 150)) + 1):
        begin = time.perf_counter()
        loss = exp.train_step()
        if step % config["average"]["every"] == 0:
            exp.average()
        if step % config["preview"]["every"] == 0:
            print(f"{step}: mse {loss.item():.4f} preview spread {exp.preview():.3f}", flush=True)
        rows.append(time.perf_counter() - begin)
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{r:.6f}\n" for r in rows)


if __name__ == "__main__":
    main()
