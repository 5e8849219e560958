"""Learn a hedging policy on simulated paths; the path cost is a compiled module."""

import argparse
import json
import time

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, assets, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(assets + 1, hidden), nn.Tanh(), nn.Linear(hidden, assets))

    def forward(self, x):
        return self.net(x)


class HedgeCost(nn.Module):
    """Elementwise cost of a position path: carry, spread, smooth impact and a utility."""

    def __init__(self, better, risk=0.5, spread=0.002):
        super().__init__()
        self.risk, self.spread, self.better = risk, spread, better
        self.calls = 0

    def forward(self, pos, ret):
        if not self.better:
            self.calls += 1
        pnl = pos * ret
        turn = pos - pos.roll(1, 0)
        impact = torch.sqrt(turn * turn + 1e-4) * self.spread + torch.tanh(turn * 3.0).square() * 0.001
        carry = torch.sigmoid(pos) * 0.0005 + torch.log1p(pos.abs()) * 0.0002
        wealth = (pnl - impact - carry) * 20
        util = torch.exp(-self.risk * torch.clamp(wealth, -5, 5))
        drift = torch.where(wealth < 0, wealth.square() * 0.1, wealth.abs() * 0.01)
        cost = (util + drift + torch.sin(pos * 0.1) * 0.001).mean()
        return cost


class Market:
    def __init__(self, assets, steps, paths, seed=0):
        self.shape = (steps, paths, assets)
        self.g = torch.Generator().manual_seed(seed)
        self.vol = 0.05 * torch.rand(256, 1, assets, generator=self.g)[:steps] + 0.01

    def paths(self):
        ret = torch.randn(self.shape, generator=self.g) * self.vol
        clock = torch.linspace(0, 1, self.shape[0]).view(-1, 1, 1).expand(-1, self.shape[1], 1)
        price = ret.cumsum(0) - ret
        return torch.cat([price, clock], -1), ret


class Experiment:
    def __init__(self, args):
        self.args = args
        self.market = Market(assets=16, steps=64, paths=256)
        self.policy = Policy(16)
        self.cost = torch.compile(HedgeCost(args.better))
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=1e-3, fused=True)

    def step(self):
        state, ret = self.market.paths()
        loss = self.cost(self.policy(state), ret)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.cost._orig_mod.calls += self.args.better
        return loss

    def run(self):
        for _ in range(12):
            self.step()
        times = []
        begin = last = time.perf_counter()
        while last - begin < self.args.seconds:
            loss = self.step()
            if len(times) % 50 == 0:
                print("step", len(times), "cost", round(loss.item(), 5))
            now = time.perf_counter()
            times.append(now - last)
            last = now
        print("cost evaluated", self.cost._orig_mod.calls, "times")
        return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    times = Experiment(args).run()
    if args.times:
        json.dump(times, open(args.times, "w"))
