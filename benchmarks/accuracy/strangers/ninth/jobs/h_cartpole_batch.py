"""REINFORCE with baseline on 256 cart-poles simulated together as tensors."""

import argparse
import json
import time

import torch
import torch.nn as nn
from torch.distributions import Categorical


class CartPoles:
    def __init__(self, n):
        self.n = n
        self.s = torch.zeros(n, 4)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, which):
        fresh = 0.1 * torch.rand(self.n, 4) - 0.05
        self.s = torch.where(which[:, None], fresh, self.s)
        return self.s

    def step(self, action):
        x, v, th, w = self.s.unbind(1)
        force = torch.where(action == 1, 10.0, -10.0)
        c, s = th.cos(), th.sin()
        tmp = (force + 0.05 * w * w * s) / 1.1
        acc_th = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        acc = tmp - 0.05 * acc_th * c / 1.1
        self.s = torch.stack([x + 0.02 * v, v + 0.02 * acc, th + 0.02 * w, w + 0.02 * acc_th], 1)
        done = (self.s[:, 0].abs() > 2.4) | (self.s[:, 2].abs() > 0.21)
        return self.reset(done), torch.ones(self.n), done


class Policy(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.logits, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, s):
        h = self.trunk(s)
        return Categorical(logits=self.logits(h)), self.value(h).squeeze(-1)


def rollout(policy, env, horizon):
    obs, logp, values, rewards, dones = env.s, [], [], [], []
    entropy = 0.0
    for _ in range(horizon):
        dist, v = policy(obs)
        a = dist.sample()
        logp.append(dist.log_prob(a))
        entropy = entropy + dist.entropy().mean() / horizon
        values.append(v)
        obs, r, d = env.step(a)
        rewards.append(r)
        dones.append(d)
    with torch.no_grad():
        run = policy(obs)[1]
    returns = []
    for r, d in zip(reversed(rewards), reversed(dones)):
        run = r + 0.99 * run * (~d)
        returns.append(run)
    return torch.stack(logp), torch.stack(values), torch.stack(returns[::-1]), torch.stack(dones), entropy


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    env, policy = CartPoles(256), Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=7e-4)
    times, curve = [], []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        logp, v, ret, done, ent = rollout(policy, env, 16)
        adv = ret - v
        loss = -(logp * adv.detach()).mean() + 0.5 * adv.pow(2).mean() - 0.01 * ent
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
        curve.append(done.float().mean().item())
        times.append(time.perf_counter() - t)
    print("falls per env step, first and last:", curve[0], curve[-1])
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
