"""Kriging of borehole measurements: fit an anisotropic RBF by maximising the marginal likelihood."""

import argparse
import json
import math
import time

import torch


class Kriging(torch.nn.Module):
    def __init__(self, dims=3):
        super().__init__()
        self.log_len = torch.nn.Parameter(torch.zeros(dims))
        self.log_amp = torch.nn.Parameter(torch.zeros(()))
        self.log_noise = torch.nn.Parameter(torch.tensor(-1.5))

    def covariance(self, a, b):
        a, b = a / self.log_len.exp(), b / self.log_len.exp()
        d2 = a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.T
        return self.log_amp.exp() * torch.exp(-0.5 * d2.clamp_min(0))

    def nll(self, x, y):
        n = len(y)
        k = self.covariance(x, x) + (self.log_noise.exp() + 1e-4) * torch.eye(n)
        k_inv = torch.inverse(k)
        fit = y @ k_inv @ y
        logdet = torch.logdet(k)
        return 0.5 * (fit + logdet + n * math.log(2 * math.pi)) / n


class KrigingTri(Kriging):
    def nll(self, x, y):
        n = len(y)
        k = self.covariance(x, x) + (self.log_noise.exp() + 1e-4) * torch.eye(n)
        chol = torch.linalg.cholesky(k)
        half = torch.linalg.solve_triangular(chol, y[:, None], upper=False)
        fit = half.square().sum()
        logdet = 2 * chol.diagonal().log().sum()
        return 0.5 * (fit + logdet + n * math.log(2 * math.pi)) / n


def survey(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=g) * 4
    y = torch.sin(2 * x[:, 0]) + torch.cos(x[:, 1]) * x[:, 2] / 3
    y = y + 0.2 * torch.randn(n, generator=g)
    return x, (y - y.mean()) / y.std()


def fit(model, x, y, seconds):
    optim = torch.optim.Adam(model.parameters(), lr=0.02)
    steps = []
    begin = time.perf_counter()
    while True:
        t0 = time.perf_counter()
        if t0 - begin >= seconds:
            break
        optim.zero_grad()
        loss = model.nll(x, y)
        loss.backward()
        optim.step()
        steps.append(time.perf_counter() - t0)
    return loss.item(), steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--holes", type=int, default=700)
    a = parser.parse_args()
    torch.manual_seed(0)
    x, y = survey(a.holes, 11)
    model = (KrigingTri if a.better else Kriging)()
    nll, steps = fit(model, x, y, a.seconds)
    print("nll per point %.4f, length scales %s" % (nll, model.log_len.exp().tolist()))
    if a.times:
        with open(a.times, "w") as fh:
            json.dump(steps, fh)


if __name__ == "__main__":
    main()
