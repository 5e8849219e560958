"""REINFORCE with a compiled actor: rollouts use a traced copy of the policy, the learner the module itself."""

import argparse
import json
import time
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
ap.add_argument("--envs", type=int, default=64)
ap.add_argument("--horizon", type=int, default=32)
args = ap.parse_args()


class Policy(nn.Module):
    def __init__(self, obs=10, act=6, h=64):
        super().__init__()
        self.inp = nn.Linear(obs, h)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(h), nn.Linear(h, h), nn.SiLU()) for _ in range(6))
        self.out = nn.Linear(h, act)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = x + b(x)
        return torch.log_softmax(self.out(x), -1)


class Chase:
    """Agent chases a drifting target in five dimensions; three axes can be pushed."""

    def __init__(self, n):
        self.me, self.it = torch.randn(n, 5), torch.randn(n, 5)
        self.axis = torch.cat([torch.eye(5)[:3], -torch.eye(5)[:3]]) * 0.2

    def obs(self):
        return torch.cat([self.me, self.it], 1)

    def step(self, a):
        self.me = 0.99 * (self.me + self.axis[a])
        self.it = 0.99 * self.it + 0.02 * torch.randn_like(self.it)
        return self.obs(), -(self.me - self.it)[:, :3].square().sum(1)


def actor_for(policy, example):
    traced = torch.jit.trace(policy, example)
    return torch.jit.freeze(traced.eval())


@torch.no_grad()
def rollout(actor, env):
    obs, acts, rews = [], [], []
    o = env.obs()
    for _ in range(args.horizon):
        a = torch.multinomial(actor(o).exp(), 1).squeeze(1)
        obs.append(o)
        acts.append(a)
        o, r = env.step(a)
        rews.append(r)
    return torch.stack(obs), torch.stack(acts), torch.stack(rews)


torch.manual_seed(0)
policy, env = Policy(), Chase(args.envs)
opt = torch.optim.Adam(policy.parameters(), lr=1e-3, fused=True)
times, begin = [], time.perf_counter()
while time.perf_counter() - begin < args.seconds:
    t = time.perf_counter()
    actor = policy if args.better else actor_for(policy, env.obs())
    obs, acts, rews = rollout(actor, env)
    ret = rews.flip(0).cumsum(0).flip(0)
    adv = (ret - ret.mean(1, keepdim=True)) / ret.std()
    logp = policy(obs).gather(2, acts[..., None]).squeeze(2)
    loss = -(logp * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    times.append(time.perf_counter() - t)

print("iterations", len(times), "return", rews.sum(0).mean().item())
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
