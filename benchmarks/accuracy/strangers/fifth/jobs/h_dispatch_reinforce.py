"""Truck dispatch as a one-step-per-order policy; REINFORCE with a batch baseline."""

import argparse
import json
import time

import torch
import torch.nn as nn
from torch.distributions import Categorical

DEPOTS, FEATS, ORDERS, FLEETS = 64, 192, 4, 512


class Yard:
    """All fleets advance together; a state is one row per fleet."""

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.effect = torch.randn(DEPOTS, FEATS, generator=g) * 0.2
        self.cost = torch.randn(FEATS, DEPOTS, generator=g) / FEATS**0.5

    def reset(self):
        self.s = torch.randn(FLEETS, FEATS)
        return self.s

    def step(self, action):
        pay = -(self.s @ self.cost).gather(1, action.unsqueeze(1)).squeeze(1)
        self.s = torch.tanh(self.s + self.effect[action])
        return self.s, pay


class Policy(nn.Module):
    def __init__(self, h=640):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATS, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, DEPOTS))

    def forward(self, s):
        return Categorical(logits=self.net(s), validate_args=False)


class Dispatcher:
    def __init__(self):
        self.yard, self.policy = Yard(), Policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=3e-4, fused=True)
        self.baseline = 0.0

    def episode(self):
        s = self.yard.reset()
        logps, entropies, pays = [], [], []
        for _ in range(ORDERS):
            d = self.policy(s)
            a = d.sample()
            logps.append(d.log_prob(a))
            entropies.append(d.entropy())
            s, pay = self.yard.step(a)
            pays.append(pay)
        returns = torch.stack(pays).flip(0).cumsum(0).flip(0)
        adv = returns - returns.mean(1, keepdim=True)
        adv = adv / (adv.std() + 1e-6)
        loss = -(torch.stack(logps) * adv).mean() - 0.01 * torch.stack(entropies).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.opt.step()
        score = returns[0].mean().item()
        self.baseline = 0.95 * self.baseline + 0.05 * score
        return score


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    agent = Dispatcher()
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        score = agent.episode()
        times.append(time.perf_counter() - t)
        if len(times) % 25 == 0:
            print(f"episode {len(times)} score {score:.3f} smoothed {agent.baseline:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
