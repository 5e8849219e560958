"""Passenger flow on a metro graph: three rounds of message passing, plain PyTorch."""

import argparse
import json
from time import perf_counter as now

import torch
from torch import nn
from torch.nn import functional as F


class Propagate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.own = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def messages(self, h, src):
        return self.value(h[src])

    def forward(self, h, src, dst, weight):
        m = self.messages(h, src) * weight[:, None]
        pooled = torch.zeros_like(h).index_add_(0, dst, m)
        return h + F.relu(self.norm(self.own(h) + pooled))


class PropagateFromNodes(Propagate):
    def messages(self, h, src):
        return self.value(h)[src]


class FlowNet(nn.Module):
    def __init__(self, layer, n_in=24, dim=128, rounds=3, horizon=6):
        super().__init__()
        self.inp = nn.Linear(n_in, dim)
        self.rounds = nn.ModuleList(layer(dim) for _ in range(rounds))
        self.out = nn.Linear(dim, horizon)

    def forward(self, x, src, dst, weight):
        h = F.relu(self.inp(x))
        for r in self.rounds:
            h = r(h, src, dst, weight)
        return self.out(h)


def metro(n, mean_degree, g):
    xy = torch.rand(n, 2, generator=g)
    near = torch.cdist(xy, xy).topk(mean_degree + 1, largest=False)
    src = near.indices[:, 1:].reshape(-1)
    dst = torch.arange(n).repeat_interleave(mean_degree)
    weight = torch.exp(-near.values[:, 1:].reshape(-1) * 10) / mean_degree
    return src, dst, weight


class Flows:
    def __init__(self, n, steps, g):
        base = torch.rand(n, 1, generator=g)
        t = torch.arange(steps) / 12
        self.series = base * (1.2 + torch.sin(t)[None]) + 0.05 * torch.randn(n, steps, generator=g)
        self.g = g

    def sample(self, past=24, horizon=6):
        t = int(torch.randint(past, self.series.shape[1] - horizon, (), generator=self.g))
        return self.series[:, t - past : t], self.series[:, t : t + horizon]


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--seconds", type=float, default=10)
    cli.add_argument("--times")
    cli.add_argument("--better", action="store_true")
    cfg = cli.parse_args()
    g = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    n = 900
    graph = metro(n, 14, g)
    flows = Flows(n, 3000, g)
    net = FlowNet(PropagateFromNodes if cfg.better else Propagate)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    laps, over = [], now() + cfg.seconds
    while now() < over:
        lap = now()
        x, y = flows.sample()
        loss = F.huber_loss(net(x, *graph), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        laps.append(now() - lap)
        if len(laps) % 50 == 0:
            print(f"{len(laps)} huber {loss.item():.4f}")
    if cfg.times:
        json.dump(laps, open(cfg.times, "w"))


if __name__ == "__main__":
    main()
