"""PPO for a gantry crane (cart, rope, load), 64 simulated cranes in one tensor. A step is one minibatch update;
the time of the rollout is in the first update after it."""

import argparse
import json
import time

import torch
from torch import nn
from torch.distributions import Normal

N_ENV, T, DT = 64, 32, 0.1


class Cranes:
    def __init__(self, n):
        self.n = n
        self.s = torch.zeros(n, 5)
        self.age = torch.zeros(n)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, m):
        fresh = torch.cat([torch.zeros(self.n, 4), torch.empty(self.n, 1).uniform_(-4, 4)], 1)
        fresh[:, 0].uniform_(-4, 4)
        self.s = torch.where(m[:, None], fresh, self.s)
        self.age = torch.where(m, torch.zeros(()), self.age)

    def step(self, a):
        x, v, th, om, goal = self.s.unbind(1)
        acc = 2.0 * a.squeeze(1).clamp(-1, 1)
        om = om + DT * (-9.8 / 5 * torch.sin(th) - acc / 5 * torch.cos(th) - 0.05 * om)
        th = th + DT * om
        v = v + DT * acc
        x = x + DT * v
        self.s = torch.stack([x, v, th, om, goal], 1)
        self.age = self.age + 1
        reward = -0.1 * (x - goal).abs() - th.abs() - 0.02 * acc.square()
        done = (self.age >= 150) | (x.abs() > 8)
        self.reset(done)
        return reward, done.float()


class Agent(nn.Module):
    def __init__(self, h=512):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(5, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))
        self.v = nn.Sequential(nn.Linear(5, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))
        self.log_std = nn.Parameter(torch.tensor(-0.5))

    def dist(self, s):
        return Normal(self.pi(s), self.log_std.exp(), validate_args=False)


@torch.no_grad()
def rollout(env, agent):
    S, A, LP, R, D = [], [], [], [], []
    for _ in range(T):
        s = env.s
        d = agent.dist(s)
        a = d.sample()
        r, done = env.step(a)
        S.append(s), A.append(a), LP.append(d.log_prob(a)), R.append(r), D.append(done)
    S, A, LP, R, D = map(torch.stack, (S, A, LP, R, D))
    V = agent.v(torch.cat([S, env.s[None]])).squeeze(-1)
    adv = torch.zeros(T, N_ENV)
    run = torch.zeros(N_ENV)
    delta = R + 0.99 * V[1:] * (1 - D) - V[:-1]
    for k in range(T - 1, -1, -1):
        run = delta[k] + 0.99 * 0.95 * (1 - D[k]) * run
        adv[k] = run
    return [x.flatten(0, 1) for x in (S, A, LP, adv, adv + V[:-1])], R.mean().item()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    env, agent = Cranes(N_ENV), Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5, fused=True)
    times, rounds = [], 0
    begin = prev = time.perf_counter()
    while prev - begin < args.seconds:
        (S, A, LP, ADV, RET), mean_r = rollout(env, agent)
        rounds += 1
        for epoch in range(10):
            for idx in torch.randperm(len(S)).split(512):
                d = agent.dist(S[idx])
                ratio = (d.log_prob(A[idx]) - LP[idx]).squeeze(1).exp()
                adv = ADV[idx]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                vl = nn.functional.mse_loss(agent.v(S[idx]).squeeze(1), RET[idx])
                loss = pg + 0.5 * vl - 0.001 * agent.log_std
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
                now = time.perf_counter()
                times.append(now - prev)
                prev = now
        if rounds % 5 == 0:
            print(f"round {rounds} reward {mean_r:.3f} v-loss {vl.item():.3f} std {agent.log_std.exp().item():.2f}")
    if args.times:
        json.dump(times, open(args.times, "w"))
