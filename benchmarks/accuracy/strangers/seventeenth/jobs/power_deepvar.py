"""Joint day-ahead forecast of household loads: GRU + low-rank Gaussian (DeepVAR-like)."""

import argparse
import json
import math
import time

import torch
import torch.distributions as D
from torch import nn


def joint_density(mean, factor, diag):
    cov = factor @ factor.mT + torch.diag_embed(diag)
    return D.MultivariateNormal(mean, covariance_matrix=cov)


def joint_density_low_rank(mean, factor, diag):
    return D.LowRankMultivariateNormal(mean, factor, diag)


class LoadForecaster(nn.Module):
    def __init__(self, households, rank, hidden, density):
        super().__init__()
        self.households, self.rank, self.density = households, rank, density
        self.encode = nn.GRU(households + 2, hidden, batch_first=True)
        self.mean = nn.Linear(hidden, households)
        self.factor = nn.Linear(hidden, households * rank)
        self.diag = nn.Linear(hidden, households)

    def forward(self, past):
        h, _ = self.encode(past)
        h = h[:, -1]
        factor = self.factor(h).view(-1, self.households, self.rank) / math.sqrt(self.rank)
        diag = nn.functional.softplus(self.diag(h)) + 1e-2
        return self.density(self.mean(h), factor, diag)


def simulate(days, households, seed=4):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(days * 24)
    daily = torch.sin(2 * math.pi * t / 24)[:, None]
    shape = torch.rand(households, generator=g)[None]
    common = torch.randn(len(t), 3, generator=g) @ torch.randn(3, households, generator=g)
    load = daily * shape + 0.3 * common + 0.2 * torch.randn(len(t), households, generator=g)
    clock = torch.stack([torch.sin(2 * math.pi * t / 24), torch.cos(2 * math.pi * t / 24)], 1)
    return load, clock


class Windows:
    def __init__(self, load, clock, context, batch):
        self.table = torch.cat([load, clock], 1)
        self.load, self.context, self.batch = load, context, batch

    def draw(self):
        at = torch.randint(0, len(self.load) - self.context - 1, (self.batch,))
        rows = at[:, None] + torch.arange(self.context)
        return self.table[rows], self.load[at + self.context]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    households = 128
    windows = Windows(*simulate(120, households), context=24, batch=32)
    net = LoadForecaster(households, 6, 96, joint_density_low_rank if args.better else joint_density)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    times = []
    finish = time.perf_counter() + args.seconds
    while time.perf_counter() < finish:
        t0 = time.perf_counter()
        past, target = windows.draw()
        nll = -net(past).log_prob(target).mean() / households
        opt.zero_grad()
        nll.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 30 == 0:
            print(f"{len(times):4d}  nll/dim {nll.item():.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
