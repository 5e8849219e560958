"""Exact Gaussian process: fit kernel hyperparameters by marginal likelihood on random subsets."""

import argparse
import json
import math
import time

import torch
from torch import nn


class ExactGP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dims))
        self.log_amp = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-1.5))

    def kernel(self, a, b):
        a, b = a / self.log_scale.exp(), b / self.log_scale.exp()
        sq = a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.t()
        return self.log_amp.exp() * torch.exp(-0.5 * sq.clamp_min(0))

    def covariance(self, x):
        return self.kernel(x, x) + (self.log_noise.exp() + 1e-3) * torch.eye(len(x))

    def nll_dense(self, x, y):
        k = self.covariance(x)
        fit = y @ torch.linalg.inv(k) @ y
        return 0.5 * (fit + torch.linalg.slogdet(k).logabsdet + len(y) * math.log(2 * math.pi)) / len(y)

    def nll_factored(self, x, y):
        chol = torch.linalg.cholesky(self.covariance(x))
        alpha = torch.linalg.solve_triangular(chol, y[:, None], upper=False)
        logdet = 2 * chol.diagonal().log().sum()
        return 0.5 * (alpha.square().sum() + logdet + len(y) * math.log(2 * math.pi)) / len(y)


def borehole(n):
    x = torch.rand(n, 8) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2 + 0.1 * torch.randn(n)
    return x, (y - y.mean()) / y.std()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--subset", type=int, default=700)
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = borehole(5000)
    gp = ExactGP(8)
    objective = gp.nll_factored if args.better else gp.nll_dense
    opt = torch.optim.Adam(gp.parameters(), lr=0.02)
    times = []
    began = time.perf_counter()
    while time.perf_counter() - began < args.seconds:
        tic = time.perf_counter()
        idx = torch.randperm(5000)[: args.subset]
        loss = objective(x[idx], y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - tic)
    scales = [round(v, 2) for v in gp.log_scale.exp().tolist()]
    print(f"nll {loss.item():.3f} lengthscales {scales}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
