"""Soft actor-critic on a vectorised reaching task."""

import argparse
import copy
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

OBS, ACT, ENVS = 8, 4, 8


class Reach:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.x = self.rng.normal(size=(ENVS, ACT)).astype(np.float32)
        self.g = self.rng.normal(size=(ENVS, ACT)).astype(np.float32)
        self.t = 0

    def obs(self):
        return np.concatenate([self.x, self.g], 1)

    def step(self, a):
        self.x += 0.1 * a
        r = -np.linalg.norm(self.x - self.g, axis=1)
        self.t += 1
        if self.t % 50 == 0:
            self.g = self.rng.normal(size=(ENVS, ACT)).astype(np.float32)
        return self.obs(), r.astype(np.float32)


class Buffer:
    def __init__(self, n=20_000):
        self.d = {
            "o": np.zeros((n, OBS), np.float32),
            "a": np.zeros((n, ACT), np.float32),
            "r": np.zeros(n, np.float32),
            "p": np.zeros((n, OBS), np.float32),
        }
        self.i, self.n, self.size = 0, 0, n

    def add(self, **kw):
        k = (self.i + np.arange(ENVS)) % self.size
        for name, v in kw.items():
            self.d[name][k] = v
        self.i, self.n = (self.i + ENVS) % self.size, min(self.n + ENVS, self.size)

    def sample(self, m):
        j = np.random.randint(0, self.n, m)
        return {k: torch.from_numpy(v[j]) for k, v in self.d.items()}


def net(i, o, h=256):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Agent:
    def __init__(self):
        self.pi, self.q1, self.q2 = net(OBS, 2 * ACT), net(OBS + ACT, 1), net(OBS + ACT, 1)
        self.t1, self.t2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self.q_par = [*self.q1.parameters(), *self.q2.parameters()]
        self.t_par = [*self.t1.parameters(), *self.t2.parameters()]
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), 3e-4, fused=True)
        self.q_opt = torch.optim.Adam(self.q_par, 3e-4, fused=True)

    def act(self, o):
        mu, ls = self.pi(o).chunk(2, -1)
        d = Normal(mu, ls.clamp(-5, 2).exp())
        u = d.rsample()
        a = u.tanh()
        return a, (d.log_prob(u) - torch.log(1 - a * a + 1e-6)).sum(-1, keepdim=True)

    def update(self, b, gamma=0.98, alpha=0.1):
        with torch.no_grad():
            a2, lp = self.act(b["p"])
            z = torch.cat([b["p"], a2], 1)
            y = b["r"][:, None] + gamma * (torch.min(self.t1(z), self.t2(z)) - alpha * lp)
        z = torch.cat([b["o"], b["a"]], 1)
        q_loss = F.mse_loss(self.q1(z), y) + F.mse_loss(self.q2(z), y)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        for p in self.q_par:
            p.requires_grad_(False)
        a, lp = self.act(b["o"])
        z = torch.cat([b["o"], a], 1)
        pi_loss = (alpha * lp - torch.min(self.q1(z), self.q2(z))).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        for p in self.q_par:
            p.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(self.t_par, self.q_par, 0.005)
        return q_loss.item(), pi_loss.item()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    env, buf, agent, times = Reach(), Buffer(), Agent(), []
    o = env.obs()
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        with torch.no_grad():
            a = agent.act(torch.from_numpy(o))[0].numpy()
        p, r = env.step(a)
        buf.add(o=o, a=a, r=r, p=p)
        o = p
        ql, pl = agent.update(buf.sample(512))
        times.append(time.perf_counter() - t0)
        if len(times) % 100 == 0:
            print(f"{len(times)} q {ql:.3f} pi {pl:.3f} reward {r.mean():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))
