"""Denoising autoencoder for mass spectra (wide MLP)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BINS = 2048


class SpectraAE(nn.Module):
    def __init__(self, hidden=1024, latent=128):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(BINS, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, BINS)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def synthetic_spectra(n):
    x = torch.zeros(n, BINS)
    peaks = torch.randint(0, BINS, (n, 40))
    x.scatter_(1, peaks, torch.rand(n, 40))
    return x


def make_optimizer(model, better):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    if better:
        return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    data = synthetic_spectra(4096)
    model = SpectraAE()
    optimizer = make_optimizer(model, args.better)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        clean = data[torch.randint(0, len(data), (32,))]
        noisy = clean + 0.05 * torch.randn_like(clean)
        loss = F.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(times) % 100 == 0:
            print(f"step {len(times)} mse {loss.item():.5f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
