#!/usr/bin/env python
"""Gaussian-process calibration of a gas turbine performance deck.

Hyper-parameters (ARD length scales, noise, signal) by gradient ascent on the marginal likelihood,
a new random subset of operating points at every iteration.
"""

import argparse
import json
import math
import time

import torch


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seconds", type=float, default=12.0)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", type=str)
    return p.parse_args()


def fake_deck(n=6000, d=6):
    g = torch.Generator().manual_seed(5)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    y = (
        torch.sin(4 * X[:, 0])
        + X[:, 1] * X[:, 2]
        + 0.5 * torch.cos(6 * X[:, 3])
        + 0.05 * torch.randn(n, generator=g, dtype=torch.float64)
    )
    return X, y - y.mean()


class Kernel(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.log_len = torch.nn.Parameter(torch.full((d,), math.log(0.6), dtype=torch.float64))
        self.log_sig = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_noise = torch.nn.Parameter(torch.tensor(math.log(0.1), dtype=torch.float64))

    def forward(self, A):
        Z = A / self.log_len.exp()
        sq = (Z * Z).sum(1)
        d2 = (sq[:, None] + sq[None, :] - 2 * Z @ Z.T).clamp_min(0)
        K = (2 * self.log_sig).exp() * torch.exp(-0.5 * d2)
        return K + ((2 * self.log_noise).exp() + 1e-6) * torch.eye(len(A), dtype=A.dtype)


def nll(K, y):
    n = len(y)
    Kinv = torch.inverse(K)
    fit = y @ Kinv @ y
    return 0.5 * (fit + torch.logdet(K) + n * math.log(2 * math.pi))


def nll_chol(K, y):
    n = len(y)
    L = torch.linalg.cholesky(K)
    v = torch.linalg.solve_triangular(L, y[:, None], upper=False)
    return 0.5 * (v.square().sum() + 2 * L.diagonal().log().sum() + n * math.log(2 * math.pi))


def main():
    args = parse()
    # the likelihood is badly conditioned in single precision
    X, y = fake_deck()
    torch.manual_seed(0)
    kern = Kernel(X.shape[1])
    opt = torch.optim.Adam(kern.parameters(), lr=0.02)
    objective = nll_chol if args.better else nll
    m = 640

    times = []
    t_start = time.perf_counter()
    it = 0
    while True:
        t = time.perf_counter()
        idx = torch.randperm(len(X))[:m]
        loss = objective(kern(X[idx]), y[idx]) / m
        opt.zero_grad()
        loss.backward()
        opt.step()
        it += 1
        if it % 20 == 0:
            print(f"[{it:4d}] nll/m {loss.item():+.4f} noise {kern.log_noise.exp().item():.4f}")
        times.append(time.perf_counter() - t)
        if time.perf_counter() - t_start > args.seconds:
            break

    order = kern.log_len.detach().argsort()
    print("inputs by relevance:", order.tolist())
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
