"""Gaussian process with a learned kernel for borehole temperatures; hyperparameters by marginal likelihood."""

import argparse, json, math, time
import torch
from torch import nn


class Kernel(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dims))
        self.log_amp = nn.Parameter(torch.tensor(0.0))
        self.log_noise = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x):
        z = x / self.log_scale.exp()
        sq = torch.cdist(z, z, compute_mode="use_mm_for_euclid_dist").square()
        k = self.log_amp.exp() * torch.exp(-0.5 * sq)
        return k + torch.eye(len(x), dtype=x.dtype) * (self.log_noise.exp() + 1e-4)


def likelihood_a(k, y):
    n = len(y)
    quad = y @ torch.linalg.inv(k) @ y
    return 0.5 * (quad + torch.logdet(k) + n * math.log(2 * math.pi)) / n


def likelihood_b(k, y):
    n = len(y)
    chol = torch.linalg.cholesky(k)
    half = torch.linalg.solve_triangular(chol, y[:, None], upper=False)
    return 0.5 * (half.square().sum() + 2 * chol.diagonal().log().sum() + n * math.log(2 * math.pi)) / n


class Boreholes:
    def __init__(self, n=4000, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.rand(n, 3, generator=g, dtype=torch.float64) * 3
        depth, lat = self.x[:, 0], self.x[:, 1]
        self.y = torch.sin(2 * depth) + 0.4 * lat + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
        self.y -= self.y.mean()
        self.g = g

    def subset(self, n):
        i = torch.randperm(len(self.x), generator=self.g)[:n]
        return self.x[i], self.y[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--points", type=int, default=500)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    data, kernel = Boreholes(), Kernel(3).double()
    nll = likelihood_b if args.better else likelihood_a
    opt = torch.optim.Adam(kernel.parameters(), lr=0.02)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        x, y = data.subset(args.points)
        loss = nll(kernel(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps nll {loss.item():.3f} scale {kernel.log_scale.exp().tolist()}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
