"""Soft actor-critic for a planar reaching arm, batched simulator. Twin critics, fixed temperature."""

import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

OBS, ACT, BATCH = 24, 4, 256


def mlp(i, o, w=384):
    return nn.Sequential(nn.Linear(i, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, o))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBS, 2 * ACT)

    def forward(self, s):
        mu, ls = self.net(s).chunk(2, -1)
        dist = Normal(mu, ls.clamp(-5, 2).exp(), validate_args=False)
        raw = dist.rsample()
        a = torch.tanh(raw)
        logp = (dist.log_prob(raw) - torch.log(1 - a.square() + 1e-6)).sum(-1)
        return a, logp


class Replay:
    def __init__(self, size=50_000):
        self.s, self.s2 = torch.zeros(size, OBS), torch.zeros(size, OBS)
        self.a, self.r = torch.zeros(size, ACT), torch.zeros(size)
        self.n, self.p, self.size = 0, 0, size

    def add(self, s, a, r, s2):
        k = (torch.arange(len(s)) + self.p) % self.size
        self.s[k], self.a[k], self.r[k], self.s2[k] = s, a, r, s2
        self.p = (self.p + len(s)) % self.size
        self.n = min(self.size, self.n + len(s))

    def sample(self, n):
        k = torch.randint(0, self.n, (n,))
        return self.s[k], self.a[k], self.r[k], self.s2[k]


class Arms:
    def __init__(self, n=16):
        self.s = torch.randn(n, OBS)
        self.B = torch.randn(ACT, OBS) * 0.1

    def step(self, a):
        s = self.s
        self.s = 0.97 * s + a @ self.B
        return s, -self.s[:, :3].norm(dim=1), self.s


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(14)
    pi, q1, q2 = Policy(), mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)
    t1, t2 = (copy.deepcopy(q).requires_grad_(False) for q in (q1, q2))
    qp, tp = [*q1.parameters(), *q2.parameters()], [*t1.parameters(), *t2.parameters()]
    opt_pi = torch.optim.Adam(pi.parameters(), lr=3e-4, fused=True)
    opt_q = torch.optim.Adam(qp, lr=3e-4, fused=True)
    env, buf = Arms(), Replay()
    alpha, gamma = 0.1, 0.98
    for _ in range(64):
        a = torch.rand(16, ACT) * 2 - 1
        s, r, s2 = env.step(a)
        buf.add(s, a, r, s2)

    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        with torch.no_grad():
            a, _ = pi(env.s)
            s, r, s2 = env.step(a)
            buf.add(s, a, r, s2)
            s, a, r, s2 = buf.sample(BATCH)
            a2, lp2 = pi(s2)
            x2 = torch.cat([s2, a2], 1)
            y = r + gamma * (torch.min(t1(x2), t2(x2)).squeeze(1) - alpha * lp2)
        x = torch.cat([s, a], 1)
        loss_q = F.mse_loss(q1(x).squeeze(1), y) + F.mse_loss(q2(x).squeeze(1), y)
        opt_q.zero_grad()
        loss_q.backward()
        opt_q.step()
        for p in qp:
            p.requires_grad_(False)
        a, lp = pi(s)
        x = torch.cat([s, a], 1)
        loss_pi = (alpha * lp - torch.min(q1(x), q2(x)).squeeze(1)).mean()
        opt_pi.zero_grad()
        loss_pi.backward()
        opt_pi.step()
        for p in qp:
            p.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(tp, qp, 0.005)
        times.append(time.perf_counter() - t0)
        if len(times) % 100 == 0:
            print(f"step {len(times)} q {loss_q.item():.3f} pi {loss_pi.item():.3f} reward {r.mean().item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
