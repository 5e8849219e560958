"""Trains a small VQ autoencoder on 1-d feature patches."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

CODES = 512
DIM = 48


class Quantizer(nn.Module):
    def __init__(self, expanded):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(CODES, DIM) * 0.3)
        self.expanded = expanded

    def nearest(self, z):
        if not self.expanded:
            return torch.addmm(self.codebook.pow(2).sum(1), z, self.codebook.T, alpha=-2).argmin(1)
        diff = z.unsqueeze(1) - self.codebook.unsqueeze(0)
        return (diff**2).sum(-1).argmin(1)

    def forward(self, z):
        with torch.no_grad():
            idx = self.nearest(z)
        q = F.embedding(idx, self.codebook)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss, idx


class VQAE(nn.Module):
    def __init__(self, expanded, patch=128, width=384):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Linear(patch, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, DIM)
        )
        self.vq = Quantizer(expanded)
        self.dec = nn.Sequential(
            nn.Linear(DIM, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, patch)
        )

    def forward(self, x):
        q, commit, idx = self.vq(self.enc(x))
        return self.dec(q), commit, idx


def usage(idx):
    counts = torch.bincount(idx, minlength=CODES).float()
    p = counts / counts.sum()
    return torch.exp(-(p * (p + 1e-10).log()).sum()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    patches = torch.randn(20_000, 16) @ torch.randn(16, 128) * 0.3
    model = VQAE(expanded=not args.better)
    opt = torch.optim.Adam(model.parameters(), lr=4e-4, fused=True)
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        x = patches[torch.randint(0, len(patches), (768,))]
        y, commit, idx = model(x)
        loss = F.mse_loss(y, x) + commit
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 50 == 0:
            print(f"{len(times)}: loss {loss.item():.4f} perplexity {usage(idx):.1f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
