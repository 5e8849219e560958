"""PPO with a Gaussian policy on a vectorised reaching task."""

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


@dataclass
class Config:
    envs: int = 128
    horizon: int = 8
    epochs: int = 2
    minibatch: int = 512
    hidden: int = 384
    gamma: float = 0.97
    lam: float = 0.95
    clip: float = 0.2
    lr: float = 3e-4


class Reach:
    """Point mass in 6-D that should reach a goal, all environments at once."""

    obs, act = 18, 6

    def __init__(self, n, seed=0):
        self.n, self.rng = n, np.random.default_rng(seed)
        self.x, self.v, self.goal = (self.rng.standard_normal((n, 6), dtype=np.float32) for _ in range(3))

    def observe(self):
        return np.concatenate([self.x, self.v, self.goal - self.x], 1)

    def step(self, a):
        self.v = 0.9 * self.v + 0.1 * np.clip(a, -1, 1)
        self.x = self.x + 0.1 * self.v
        dist = np.linalg.norm(self.goal - self.x, axis=1)
        done = (dist < 0.3) | (self.rng.random(self.n) < 0.01)
        k = int(done.sum())
        self.x[done] = self.rng.standard_normal((k, 6), dtype=np.float32)
        self.goal[done] = self.rng.standard_normal((k, 6), dtype=np.float32)
        return self.observe(), -dist, done.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(Reach.obs, c.hidden), nn.Tanh(), nn.Linear(c.hidden, c.hidden), nn.Tanh())
        self.mean, self.value = nn.Linear(c.hidden, Reach.act), nn.Linear(c.hidden, 1)
        self.log_std = nn.Parameter(torch.full((Reach.act,), -0.5))

    def forward(self, obs):
        h = self.body(obs)
        return Normal(self.mean(h), self.log_std.exp(), validate_args=False), self.value(h).squeeze(-1)


class PPO:
    def __init__(self, c):
        self.c, self.env, self.net = c, Reach(c.envs), ActorCritic(c)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=c.lr, fused=True)
        self.obs = torch.from_numpy(self.env.observe())

    @torch.no_grad()
    def rollout(self):
        c, rows = self.c, []
        for _ in range(c.horizon):
            dist, value = self.net(self.obs)
            act = dist.sample()
            nxt, rew, done = self.env.step(act.numpy())
            rows.append(
                (self.obs, act, dist.log_prob(act).sum(-1), value, torch.from_numpy(rew), torch.from_numpy(done))
            )
            self.obs = torch.from_numpy(nxt)
        obs, act, logp, value, rew, done = (torch.stack(z) for z in zip(*rows))
        nxt, run, adv = self.net(self.obs)[1], 0, torch.empty_like(rew)
        for t in reversed(range(c.horizon)):
            delta = rew[t] + c.gamma * nxt * (1 - done[t]) - value[t]
            run = delta + c.gamma * c.lam * (1 - done[t]) * run
            adv[t], nxt = run, value[t]
        flat = [z.flatten(0, 1) for z in (obs, act, logp, adv, adv + value)]
        return flat, rew.mean().item()

    def update(self, flat):
        c = self.c
        for _ in range(c.epochs):
            for i in torch.randperm(len(flat[0])).split(c.minibatch):
                obs, act, old, adv, ret = (z[i] for z in flat)
                dist, value = self.net(obs)
                ratio = (dist.log_prob(act).sum(-1) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-6)
                gain = torch.minimum(ratio * adv, ratio.clamp(1 - c.clip, 1 + c.clip) * adv).mean()
                loss = -gain + 0.5 * (value - ret).square().mean() - 0.001 * dist.entropy().sum(-1).mean()
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5, foreach=True)
                self.opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    ppo, times = PPO(Config()), []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        flat, reward = ppo.rollout()
        ppo.update(flat)
        if len(times) % 20 == 0:
            print(f"iteration {len(times)} mean reward {reward:.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
