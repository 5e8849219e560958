"""Denoising diffusion on 32x32 images, with the memory-saving setting of the paper's code."""

import argparse
import json
import math
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class ResBlock(nn.Module):
    def __init__(self, width, time_dim):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time_dim, width)

    def forward(self, x, emb):
        h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(emb)[:, :, None, None]
        return x + self.conv2(nn.functional.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self, width=48, depth=4, save_memory=True):
        super().__init__()
        self.inp, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.blocks = nn.ModuleList(ResBlock(width, 64) for _ in range(depth))
        self.save_memory = save_memory

    def embed(self, t):
        freqs = torch.exp(-math.log(10000) * torch.arange(32) / 32)
        a = t[:, None] * freqs
        return torch.cat([a.sin(), a.cos()], 1)

    def forward(self, x, t):
        emb = self.embed(t)
        x = self.inp(x)
        for block in self.blocks:
            if self.save_memory and self.training:
                x = checkpoint(block, x, emb, use_reentrant=False)
            else:
                x = block(x, emb)
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Denoiser(save_memory=not args.better)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    images = torch.randn(256, 3, 32, 32)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    times, start = [], time.perf_counter()
    last = start
    while last - start < args.seconds:
        x0 = images[torch.randint(0, 256, (4,))]
        t = torch.randint(0, 1000, (4,))
        noise = torch.randn_like(x0)
        a = alphas[t].view(-1, 1, 1, 1)
        predicted = model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t.float())
        loss = (predicted - noise).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("steps", len(times), "loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
