"""Fit the hyper-parameters of a Gaussian-process surrogate for a chemical reactor."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn


def reactor(x, generator):
    """Synthetic yield curve with measurement noise."""
    temp, flow, ph = x[:, 0], x[:, 1], x[:, 2]
    clean = torch.sin(3 * temp) * torch.exp(-(flow**2)) + 0.3 * ph * temp
    return clean + 0.05 * torch.randn(len(x), generator=generator, dtype=x.dtype)


class ExactGP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dims, dtype=torch.float64))
        self.log_amp = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_noise = nn.Parameter(torch.tensor(-2.0, dtype=torch.float64))
        self.mean = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def kernel(self, a, b):
        a, b = a / self.log_scale.exp(), b / self.log_scale.exp()
        sq = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
        return self.log_amp.exp() * torch.exp(-0.5 * sq.clamp(min=0))

    def covariance(self, x):
        eye = torch.eye(len(x), dtype=x.dtype)
        return self.kernel(x, x) + (self.log_noise.exp() + 1e-6) * eye


def negative_log_likelihood(gp, x, y):
    """-log p(y | x, theta) / n"""
    n = len(y)
    resid = y - gp.mean
    cov = gp.covariance(x)
    precision = torch.linalg.inv(cov)
    fit = resid @ precision @ resid
    logdet = torch.linalg.slogdet(cov).logabsdet
    return 0.5 * (fit + logdet + n * math.log(2 * math.pi)) / n


def negative_log_likelihood_chol(gp, x, y):
    n = len(y)
    resid = y - gp.mean
    factor = torch.linalg.cholesky(gp.covariance(x))
    white = torch.linalg.solve_triangular(factor, resid[:, None], upper=False)
    logdet = 2 * factor.diagonal().log().sum()
    return 0.5 * (white.square().sum() + logdet + n * math.log(2 * math.pi)) / n


@torch.no_grad()
def predict(gp, x, y, query):
    alpha = torch.linalg.solve(gp.covariance(x), y - gp.mean)
    return gp.mean + gp.kernel(query, x) @ alpha


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--seconds", type=float, default=16)
    parser.add_argument("--points", type=int, default=700)
    args = parser.parse_args()

    g = torch.Generator().manual_seed(5)
    x = torch.rand(args.points, 3, generator=g, dtype=torch.float64) * 2 - 1
    y = reactor(x, g)
    probe = torch.rand(100, 3, generator=g, dtype=torch.float64) * 2 - 1
    truth = reactor(probe, g)
    gp = ExactGP(3)
    objective = negative_log_likelihood_chol if args.better else negative_log_likelihood
    optimizer = torch.optim.Adam(gp.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.7)

    times = []
    begin = time.perf_counter()
    iteration = 0
    while time.perf_counter() - begin < args.seconds:
        tick = time.perf_counter()
        optimizer.zero_grad()
        loss = objective(gp, x, y)
        loss.backward()
        optimizer.step()
        schedule.step()
        if iteration % 100 == 0:
            rmse = (predict(gp, x, y, probe) - truth).square().mean().sqrt()
            scales = ", ".join(f"{v:.3f}" for v in gp.log_scale.exp().tolist())
            print(f"iter {iteration:4d}  nll {loss.item():.4f}  rmse {rmse:.4f}  length scales [{scales}]")
        iteration += 1
        times.append(time.perf_counter() - tick)

    print(f"final noise {gp.log_noise.exp().item():.4f}, amplitude {gp.log_amp.exp().item():.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
