"""Policy gradient on a bank of pendulums: NumPy physics in the loop, returns computed backwards in Python."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


class Pendulums:
    def __init__(self, n, seed=0):
        self.rng = np.random.default_rng(seed)
        self.theta = self.rng.uniform(-np.pi, np.pi, n)
        self.speed = np.zeros(n)

    def observe(self):
        return np.stack([np.cos(self.theta), np.sin(self.theta), self.speed], 1).astype(np.float32)

    def step(self, torque, dt=0.05):
        u = np.clip(torque, -2, 2)
        cost = np.square((self.theta + np.pi) % (2 * np.pi) - np.pi) + 0.1 * np.square(self.speed) + 1e-3 * np.square(u)
        self.speed = np.clip(self.speed + (15 * np.sin(self.theta) + 3 * u) * dt, -8, 8)
        self.theta = self.theta + self.speed * dt
        return -cost.astype(np.float32)


class Policy(nn.Module):
    def __init__(self, width=896):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, obs):
        return Normal(self.net(obs).squeeze(-1), self.log_std.exp())


def returns(rewards, gamma=0.97):
    out, running = [], np.zeros_like(rewards[0])
    for r in reversed(rewards):
        running = r + gamma * running
        out.append(running)
    return np.stack(out[::-1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    env, policy = Pendulums(256), Policy()
    opt = torch.optim.SGD(policy.parameters(), lr=1e-4)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < a.seconds:
        t0 = time.perf_counter()
        logps, rewards = [], []
        for _ in range(4):
            dist = policy(torch.from_numpy(env.observe()))
            action = dist.sample()
            logps.append(dist.log_prob(action))
            rewards.append(env.step(action.numpy().astype(np.float64)))
        g = torch.from_numpy(returns(rewards))
        advantage = (g - g.mean(1, keepdim=True)) / (g.std() + 1e-6)
        loss = -(torch.stack(logps) * advantage).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            print(f"update {len(times)}: mean reward {np.mean(rewards):.3f} std {policy.log_std.exp().item():.3f}")
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
