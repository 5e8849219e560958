"""PPO for the tote-routing simulator. One entry of the times is one collect+update iteration."""

import argparse, json, time
import torch
from torch import nn
from torch.distributions import Categorical

N_ENVS, HORIZON, OBS, ACTS = 24, 48, 32, 6
GAMMA, LAM, CLIP = 0.99, 0.95, 0.2


class ToteSim:
    def __init__(self, n):
        g = torch.Generator().manual_seed(2)
        self.A = torch.randn(OBS, OBS, generator=g) * 0.12
        self.B = torch.randn(ACTS, OBS, generator=g) * 0.3
        self.goal = torch.randn(OBS, generator=g)
        self.s = torch.randn(n, OBS)
        self.age = torch.randint(0, 90, (n,))

    def step(self, act):
        self.s = torch.tanh(self.s @ self.A + self.B[act] + 0.9 * self.s)
        self.age += 1
        reward = -(self.s - self.goal).square().mean(-1)
        done = (self.age >= 90).float()
        fresh = torch.randn_like(self.s)
        self.s = torch.where(done[:, None] > 0, fresh, self.s)
        self.age = torch.where(done > 0, torch.zeros_like(self.age), self.age)
        return self.s, reward, done


class ActorCritic(nn.Module):
    def __init__(self, h=256):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(OBS, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi = nn.Linear(h, ACTS)
        self.v = nn.Linear(h, 1)

    def forward(self, x):
        z = self.trunk(x)
        return self.pi(z), self.v(z).squeeze(-1)


class Agent:
    def __init__(self, rows):
        self.net = ActorCritic()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=3e-4, fused=True)
        self.sim = ToteSim(N_ENVS)
        self.rows = rows

    @torch.no_grad()
    def collect(self):
        obs, acts, logps, vals, rews, dones = [], [], [], [], [], []
        s = self.sim.s
        for _ in range(HORIZON):
            logits, v = self.net(s)
            d = Categorical(logits=logits, validate_args=False)
            a = d.sample()
            obs.append(s)
            acts.append(a)
            logps.append(d.log_prob(a))
            vals.append(v)
            s, r, done = self.sim.step(a)
            rews.append(r)
            dones.append(done)
        _, last = self.net(s)
        stack = torch.stack
        return stack(obs), stack(acts), stack(logps), stack(vals), stack(rews), stack(dones), last

    def advantages(self, vals, rews, dones, last):
        adv = torch.zeros_like(rews)
        if self.rows:
            acc, nxt = torch.zeros(N_ENVS), last
            for t in reversed(range(HORIZON)):
                live = 1 - dones[t]
                acc = rews[t] + GAMMA * nxt * live - vals[t] + GAMMA * LAM * live * acc
                adv[t], nxt = acc, vals[t]
            return adv
        for e in range(N_ENVS):
            acc, nxt = 0.0, last[e]
            for t in reversed(range(HORIZON)):
                live = 1 - dones[t, e]
                delta = rews[t, e] + GAMMA * nxt * live - vals[t, e]
                acc = delta + GAMMA * LAM * live * acc
                adv[t, e] = acc
                nxt = vals[t, e]
        return adv

    def update(self):
        obs, acts, logps, vals, rews, dones, last = self.collect()
        adv = self.advantages(vals, rews, dones, last)
        ret = (adv + vals).flatten()
        adv = adv.flatten()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        obs, acts, logps = obs.flatten(0, 1), acts.flatten(), logps.flatten()
        for _ in range(4):
            for idx in torch.randperm(len(adv)).split(288):
                logits, v = self.net(obs[idx])
                d = Categorical(logits=logits, validate_args=False)
                ratio = (d.log_prob(acts[idx]) - logps[idx]).exp()
                a = adv[idx]
                pg = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
                loss = pg + 0.5 * (v - ret[idx]).square().mean() - 0.01 * d.entropy().mean()
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.opt.step()
        return rews.mean()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()
    torch.manual_seed(0)
    agent = Agent(rows=args.better)
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        r = agent.update()
        times.append(time.perf_counter() - t)
        if len(times) % 10 == 0:
            print("iter", len(times), "reward", round(float(r), 4))
    if args.times:
        json.dump(times, open(args.times, "w"))
