"""PPO on a vectorised toy pendulum. One timed step = one rollout + one update phase."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
from torch.distributions import Normal

N_ENVS, HORIZON = 16, 64


class PendulumVec:
    def __init__(self, n):
        self.n = n
        self.th = torch.rand(n) * 2 * math.pi
        self.w = torch.zeros(n)
        self.t = torch.randint(0, 100, (n,))

    def obs(self):
        return torch.stack([self.th.cos(), self.th.sin(), self.w / 8], 1)

    def step(self, u):
        u = u.clamp(-2, 2)
        cost = (torch.remainder(self.th + math.pi, 2 * math.pi) - math.pi) ** 2 + 0.1 * self.w**2
        self.w = (self.w + 0.05 * (15 * self.th.sin() + 3 * u)).clamp(-8, 8)
        self.th = self.th + 0.05 * self.w
        self.t += 1
        done = self.t >= 100
        self.t[done] = 0
        self.th = torch.where(done, torch.rand(self.n) * 2 * math.pi, self.th)
        return self.obs(), -cost, done.float()


class ActorCritic(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(3, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))
        self.v = nn.Sequential(nn.Linear(3, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def dist(self, o):
        return Normal(self.pi(o).squeeze(-1), self.log_std.exp())


def gae(rew, val, done, last, gamma=0.99, lam=0.95):
    adv = torch.zeros_like(rew)
    for e in range(rew.shape[1]):
        acc = 0.0
        for t in reversed(range(rew.shape[0])):
            nxt = last[e] if t == rew.shape[0] - 1 else val[t + 1, e]
            delta = rew[t, e] + gamma * nxt * (1 - done[t, e]) - val[t, e]
            acc = delta + gamma * lam * (1 - done[t, e]) * acc
            adv[t, e] = acc
    return adv


def gae_vec(rew, val, done, last, gamma=0.99, lam=0.95):
    nxt = torch.cat([val[1:], last[None]])
    delta = rew + gamma * nxt * (1 - done) - val
    adv, acc = torch.zeros_like(rew), torch.zeros(rew.shape[1])
    for t in reversed(range(rew.shape[0])):
        acc = delta[t] + gamma * lam * (1 - done[t]) * acc
        adv[t] = acc
    return adv


def main(args):
    torch.manual_seed(1)
    env, ac = PendulumVec(N_ENVS), ActorCritic()
    opt = torch.optim.Adam(ac.parameters(), lr=3e-4)
    advantage = gae_vec if args.better else gae
    times, obs = [], env.obs()
    deadline = time.perf_counter() + args.seconds
    while time.perf_counter() < deadline:
        start = time.perf_counter()
        O, A, L, R, V, D = [], [], [], [], [], []
        with torch.no_grad():
            for _ in range(HORIZON):
                d = ac.dist(obs)
                a = d.sample()
                O.append(obs), A.append(a), L.append(d.log_prob(a)), V.append(ac.v(obs).squeeze(-1))
                obs, r, done = env.step(a)
                R.append(r), D.append(done)
            O, A, L, R, V, D = map(torch.stack, (O, A, L, R, V, D))
            adv = advantage(R, V, D, ac.v(obs).squeeze(-1))
            ret = adv + V
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        b_obs, b_act, b_lp, b_adv, b_ret = O.flatten(0, 1), A.flatten(), L.flatten(), adv.flatten(), ret.flatten()
        for _ in range(4):
            for mb in torch.randperm(len(b_act)).split(256):
                d = ac.dist(b_obs[mb])
                ratio = (d.log_prob(b_act[mb]) - b_lp[mb]).exp()
                pg = -torch.min(ratio * b_adv[mb], ratio.clamp(0.8, 1.2) * b_adv[mb]).mean()
                vl = (ac.v(b_obs[mb]).squeeze(-1) - b_ret[mb]).pow(2).mean()
                loss = pg + 0.5 * vl - 0.01 * d.entropy().mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
                opt.step()
        times.append(time.perf_counter() - start)
        if len(times) % 20 == 0:
            print(f"update {len(times)} mean reward {R.mean().item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    main(p.parse_args())
