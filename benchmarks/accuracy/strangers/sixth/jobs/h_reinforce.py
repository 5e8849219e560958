"""Policy gradient on a batch of point-mass worlds simulated with tensors."""

import argparse
import json
import time

import torch
from torch import nn
from torch.distributions import Normal

WORLDS = 512
STEPS = 12


class Policy(nn.Module):
    def __init__(self, n_obs=8, n_act=2, hidden=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, n_act)
        )
        self.log_std = nn.Parameter(torch.full((n_act,), -0.5))

    def forward(self, obs):
        return Normal(self.net(obs), self.log_std.exp(), validate_args=False)


class PointMass:
    def reset(self):
        self.pos = torch.randn(WORLDS, 2)
        self.vel = torch.zeros(WORLDS, 2)
        self.goal = torch.randn(WORLDS, 2)
        return self.obs()

    def obs(self):
        return torch.cat([self.pos, self.vel, self.goal, self.goal - self.pos], 1)

    def step(self, a):
        self.vel = 0.9 * self.vel + 0.1 * a.clamp(-2, 2)
        self.pos = self.pos + self.vel
        return self.obs(), -(self.pos - self.goal).norm(dim=1)


def rollout(policy, env):
    obs, logp, rewards = env.reset(), [], []
    for _ in range(STEPS):
        dist = policy(obs)
        action = dist.sample()
        logp.append(dist.log_prob(action).sum(-1))
        obs, r = env.step(action)
        rewards.append(r)
    return torch.stack(logp), torch.stack(rewards)


def to_go(r, gamma=0.98):
    out = torch.empty_like(r)
    acc = torch.zeros_like(r[0])
    for t in reversed(range(len(r))):
        acc = r[t] + gamma * acc
        out[t] = acc
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    policy, env = Policy(), PointMass()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=True)
    times = []
    best = float("-inf")
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        logp, rewards = rollout(policy, env)
        ret = to_go(rewards)
        adv = (ret - ret.mean(1, keepdim=True)) / (ret.std(1, keepdim=True) + 1e-6)
        loss = -(logp * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        score = rewards.mean().item()
        best = max(best, score)
        times.append(time.perf_counter() - t)
        if len(times) % 20 == 0:
            print(f"iteration {len(times)} reward {score:.3f} best {best:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
