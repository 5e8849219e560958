"""VAE on astronomical spectra (dense layers)."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self, bins=1024, width=1024, z=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Linear(bins, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * z)
        )
        self.dec = nn.Sequential(
            nn.Linear(z, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, bins)
        )

    def forward(self, x):
        mu, logvar = self.enc(x).float().chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
        return self.dec(z).float(), kl


def spectra(n=4000, bins=1024, seed=0):
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(0, 1, bins)
    x = torch.exp(-axis * torch.rand(n, 1, generator=g) * 2)
    for _ in range(3):
        x -= 0.5 * torch.exp(-((axis - torch.rand(n, 1, generator=g)) / 0.01).square())
    return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    data = spectra()
    g = torch.Generator().manual_seed(1)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        x = data[torch.randint(len(data), (384,), generator=g)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, kl = model(x)
        loss = F.mse_loss(out, x, reduction="sum") / len(x) + kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.2f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
