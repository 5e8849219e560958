"""Gaussian-process regression of ore grades with learned anisotropic length scales."""

import argparse, json, math, time
import torch
from torch import nn


def boreholes(n=420, seed=1):
    g = torch.Generator().manual_seed(seed)
    xyz = torch.rand(n, 3, generator=g) * torch.tensor([4.0, 2.0, 1.0])
    grade = torch.sin(2 * xyz[:, 0]) * torch.cos(3 * xyz[:, 1]) + 0.3 * xyz[:, 2]
    return xyz, grade + 0.1 * torch.randn(n, generator=g)


class Kriging(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable
        self.log_scale = nn.Parameter(torch.zeros(3))
        self.log_amp = nn.Parameter(torch.tensor(0.0))
        self.log_noise = nn.Parameter(torch.tensor(-1.5))
        self.mean = nn.Parameter(torch.tensor(0.0))

    def kernel(self, a, b):
        a, b = a / self.log_scale.exp(), b / self.log_scale.exp()
        sq = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
        return self.log_amp.exp() * torch.exp(-0.5 * sq.clamp_min(0))

    def nll(self, x, y):
        n = len(y)
        K = self.kernel(x, x) + (self.log_noise.exp() + 1e-3) * torch.eye(n)
        r = y - self.mean
        if self.stable:
            chol = torch.linalg.cholesky(K)
            w = torch.linalg.solve_triangular(chol, r[:, None], upper=False)
            fit, logdet = (w * w).sum(), 2 * chol.diagonal().log().sum()
        else:
            fit = r @ torch.linalg.inv(K) @ r
            logdet = torch.logdet(K)
        return 0.5 * (fit + logdet + n * math.log(2 * math.pi)) / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=14)
    args = ap.parse_args()

    torch.manual_seed(0)
    x, y = boreholes()
    gp = Kriging(stable=args.better)
    opt = torch.optim.Adam(gp.parameters(), lr=0.02)
    times = []
    begin = last = time.perf_counter()
    for it in range(1500):
        keep = torch.randperm(len(x))[:400]  # random folds against over-fitting
        loss = gp.nll(x[keep], y[keep])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 50 == 0:
            scales = [round(v, 3) for v in gp.log_scale.exp().tolist()]
            print(f"iter {it:4d} nll {loss.item():.4f} scales {scales}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
