"""Soft actor-critic on made transitions, tensors as replay memory, one update per step."""

import argparse, copy, json, time
import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
S, A, H = 24, 6, 384


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, o))


class Memory:
    def __init__(self, cap=30000):
        self.s, self.a, self.r, self.n = (
            torch.randn(cap, S),
            torch.rand(cap, A) * 2 - 1,
            torch.randn(cap, 1),
            torch.randn(cap, S),
        )
        self.cap, self.at = cap, 0

    def add(self, k=4):
        i = torch.arange(self.at, self.at + k) % self.cap
        self.s[i] = torch.randn(k, S)
        self.at = (self.at + k) % self.cap

    def sample(self, n):
        i = torch.randint(0, self.cap, (n,))
        return self.s[i], self.a[i], self.r[i], self.n[i]


class Agent:
    def __init__(self):
        self.pi, self.q1, self.q2 = mlp(S, 2 * A), mlp(S + A, 1), mlp(S + A, 1)
        self.t1, self.t2 = (copy.deepcopy(q).requires_grad_(False) for q in (self.q1, self.q2))
        self.critics = [*self.q1.parameters(), *self.q2.parameters()]
        self.targets = [*self.t1.parameters(), *self.t2.parameters()]
        self.oq = torch.optim.Adam(self.critics, 3e-4, fused=True)
        self.op = torch.optim.Adam(self.pi.parameters(), 3e-4, fused=True)

    def act(self, s):
        mu, ls = self.pi(s).chunk(2, -1)
        ls = ls.clamp(-5, 2)
        eps = torch.randn_like(mu)
        a = torch.tanh(mu + ls.exp() * eps)
        logp = (-0.5 * eps.square() - ls - torch.log1p(-a.square() + 1e-6)).sum(-1, keepdim=True)
        return a, logp

    def update(self, batch):
        s, a, r, n = batch
        with torch.no_grad():
            na, lp = self.act(n)
            x = torch.cat([n, na], 1)
            y = r + 0.99 * (torch.min(self.t1(x), self.t2(x)) - 0.2 * lp)
        x = torch.cat([s, a], 1)
        lq = (self.q1(x) - y).square().mean() + (self.q2(x) - y).square().mean()
        self.oq.zero_grad()
        lq.backward()
        self.oq.step()
        for p in self.critics:
            p.requires_grad_(False)
        a2, lp = self.act(s)
        x = torch.cat([s, a2], 1)
        lpi = (0.2 * lp - torch.min(self.q1(x), self.q2(x))).mean()
        self.op.zero_grad()
        lpi.backward()
        self.op.step()
        for p in self.critics:
            p.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(self.targets, self.critics, 0.005)
        return lq.detach(), lpi.detach()


agent, mem = Agent(), Memory()
times, history = [], []
prev = start = time.perf_counter()
while prev - start < args.seconds or len(times) < 24:
    mem.add()
    history.append(agent.update(mem.sample(512)))
    now = time.perf_counter()
    times.append(now - prev)
    prev = now
print(
    "updates", len(times), "critic %.3f actor %.3f" % tuple(torch.stack(x).mean().item() for x in zip(*history[-20:]))
)
with torch.no_grad():
    print("evaluate_policy: mean action %.3f" % agent.act(mem.s[:5000])[0].mean().item())
if args.times:
    json.dump(times, open(args.times, "w"))
