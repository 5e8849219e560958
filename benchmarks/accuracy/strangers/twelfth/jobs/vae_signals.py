"""Variational autoencoder for machine vibration records (unsupervised fault finding)."""

import argparse
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

POINTS, LATENT, BATCH = 256, 12, 24


def configure(seed, checks):
    torch.manual_seed(seed)
    np.random.seed(seed)
    torch.autograd.set_detect_anomaly(checks)


def vibration(n=3000):
    t = np.linspace(0, 1, POINTS)
    f = np.random.uniform(4, 20, (n, 1))
    x = np.sin(2 * np.pi * f * t) + 0.5 * np.sin(4 * np.pi * f * t + np.random.rand(n, 1) * 6)
    x *= np.random.uniform(0.5, 1.0, (n, 1))
    return torch.tensor(x + np.random.normal(0, 0.05, x.shape), dtype=torch.float32)


class Gate(nn.Module):
    """Gated linear unit with a residual path."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.value(y) * torch.sigmoid(self.gate(y))


class VAE(nn.Module):
    def __init__(self, width=96, depth=6):
        super().__init__()
        self.enter = nn.Linear(POINTS, width)
        self.encode = nn.Sequential(*[Gate(width) for _ in range(depth)])
        self.stats = nn.Linear(width, 2 * LATENT)
        self.expand = nn.Linear(LATENT, width)
        self.decode = nn.Sequential(*[Gate(width) for _ in range(depth)])
        self.leave = nn.Linear(width, POINTS)

    def forward(self, x):
        mu, logvar = self.stats(self.encode(self.enter(x))).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.leave(self.decode(self.expand(z))), mu, logvar


def elbo(x, out, mu, logvar, beta):
    rec = F.mse_loss(out, x, reduction="none").sum(1)
    kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1)
    return (rec + beta * kl).mean(), rec.mean().detach()


def anomaly_scores(model, x):
    model.eval()
    with torch.no_grad():
        out, _, _ = model(x)
    return (out - x).square().mean(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    configure(seed=0, checks=not args.better)
    data = vibration()
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    laps, step = [], 0
    t0 = prev = time.perf_counter()
    while prev - t0 < args.seconds:
        x = data[torch.randint(0, len(data), (BATCH,))]
        beta = min(1.0, step / 500)
        loss, rec = elbo(x, *model(x), beta)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        if step % 100 == 0:
            print(f"{step} elbo {loss.item():.2f} rec {rec.item():.2f}")
        step += 1
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    s = anomaly_scores(model, data[:512])
    print(f"scores: median {s.median().item():.4f} max {s.max().item():.4f}")
    if args.times:
        np.savetxt(args.times, laps)


if __name__ == "__main__":
    main()
