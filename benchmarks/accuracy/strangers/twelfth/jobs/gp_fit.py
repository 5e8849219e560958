"""Gaussian-process emulator of a climate simulator: fit kernel scales by marginal likelihood."""

import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn

INPUTS = 6


def simulator_runs(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, INPUTS))
    y = np.sin(5 * x[:, 0]) + x[:, 1] ** 2 + 0.5 * np.cos(7 * x[:, 2] * x[:, 3]) + 0.05 * rng.normal(size=n)
    return torch.from_numpy(x), torch.from_numpy((y - y.mean()) / y.std())


class Matern(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(INPUTS, dtype=torch.float64))
        self.log_amp = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, a, b):
        a, b = a * self.log_scale.exp(), b * self.log_scale.exp()
        d2 = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
        r = math.sqrt(5) * (d2.clamp(min=0) + 1e-12).sqrt()
        return self.log_amp.exp() * (1 + r + r**2 / 3) * torch.exp(-r)


class Evidence(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = Matern()
        self.log_noise = nn.Parameter(torch.tensor(-3.0, dtype=torch.float64))
        self.mean = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def covariance(self, x):
        eye = torch.eye(len(x), dtype=x.dtype)
        return self.kernel(x, x) + (self.log_noise.exp() + 1e-6) * eye

    def forward(self, x, y):
        raise NotImplementedError


class DirectEvidence(Evidence):
    def forward(self, x, y):
        k = self.covariance(x)
        d = (y - self.mean).unsqueeze(1)
        fit = (d.T @ torch.linalg.inv(k) @ d).squeeze()
        return 0.5 * (fit + torch.logdet(k) + len(x) * math.log(2 * math.pi)) / len(x)


class FactorEvidence(Evidence):
    def forward(self, x, y):
        low = torch.linalg.cholesky(self.covariance(x))
        d = (y - self.mean).unsqueeze(1)
        w = torch.linalg.solve_triangular(low, d, upper=False)
        logdet = 2 * low.diagonal().log().sum()
        return 0.5 * (w.square().sum() + logdet + len(x) * math.log(2 * math.pi)) / len(x)


def fit(model, x, y, seconds, subset):
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    laps = []
    t0 = prev = time.perf_counter()
    while prev - t0 < seconds:
        idx = torch.randperm(len(x))[:subset]
        loss = model(x[idx], y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if len(laps) % 50 == 0:
            print(f"{len(laps)}: nll per point {loss.item():.4f}")
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    return laps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--subset", type=int, default=320)
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = simulator_runs()
    model = FactorEvidence() if args.better else DirectEvidence()
    laps = fit(model, x, y, args.seconds, args.subset)
    print("length scales", [round(v, 2) for v in (-model.kernel.log_scale).exp().tolist()])
    if args.times:
        np.savetxt(args.times, laps)


if __name__ == "__main__":
    main()
