"""VQ-VAE on mel patches, nearest-code lookup with straight-through gradients."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F


class Quantizer(nn.Module):
    def __init__(self, codes=512, dim=64, expand=False):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, dim))
        self.expand = expand

    def nearest(self, z):
        book = self.codebook
        if self.expand:
            dist = z.square().sum(1, keepdim=True) - 2 * z @ book.t() + book.square().sum(1)
        else:
            dist = (z[:, None, :] - book[None, :, :]).square().sum(-1)
        return dist.argmin(1)

    def forward(self, z):
        with torch.no_grad():
            codes = self.nearest(z)
        q = self.codebook[codes]
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss, codes


class VQVAE(nn.Module):
    def __init__(self, expand):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(160, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))
        self.vq = Quantizer(expand=expand)
        self.dec = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 160))

    def forward(self, x):
        z, vq_loss, codes = self.vq(self.enc(x))
        return F.mse_loss(self.dec(z), x) + vq_loss, codes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)
    patches = torch.randn(40_000, 160)
    model = VQVAE(args.better)
    opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    usage = torch.zeros(512)
    times = []
    t0 = time.perf_counter()
    while True:
        s = time.perf_counter()
        if s - t0 > args.seconds:
            break
        x = patches[torch.randint(0, len(patches), (768,))]
        loss, codes = model(x)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        usage.mul_(0.99).add_(torch.bincount(codes, minlength=512), alpha=0.01)
        times.append(time.perf_counter() - s)
    p = usage / usage.sum()
    print(f"loss {loss.item():.3f} perplexity {torch.exp(-(p * (p + 1e-9).log()).sum()).item():.1f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
