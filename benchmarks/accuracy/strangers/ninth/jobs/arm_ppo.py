# PPO for a planar 3-link arm reaching task
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal


class ArmEnv:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.q = self.rng.uniform(-1, 1, 3)
        self.dq = np.zeros(3)
        self.goal = self.rng.uniform(-2, 2, 2)
        self.t = 0
        return self.obs()

    def tip(self):
        a = np.cumsum(self.q)
        return np.array([np.cos(a).sum(), np.sin(a).sum()])

    def obs(self):
        return np.concatenate([self.q, self.dq, self.goal, self.tip()]).astype(np.float32)

    def step(self, u):
        self.dq = 0.95 * self.dq + 0.05 * np.clip(u, -2, 2)
        self.q = self.q + 0.05 * self.dq
        self.t += 1
        r = -float(np.linalg.norm(self.tip() - self.goal))
        done = self.t >= 100
        o = self.reset() if done else self.obs()
        return o, r, done


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(10, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3))
        self.v = nn.Sequential(nn.Linear(10, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
        self.log_std = nn.Parameter(torch.zeros(3))

    @torch.no_grad()
    def act(self, obs):
        d = Normal(self.pi(obs), self.log_std.exp())
        a = d.sample()
        return a, d.log_prob(a).sum(-1), self.v(obs).squeeze(-1)


def collect(agent, envs, obs, horizon, together):
    buf = {k: [] for k in ("obs", "act", "logp", "val", "rew")}
    for _ in range(horizon):
        if together:
            a, lp, v = agent.act(torch.from_numpy(np.stack(obs)))
            acts, lps, vals = a, lp, v
        else:
            acts, lps, vals = [], [], []
            for o in obs:
                a, lp, v = agent.act(torch.from_numpy(o))
                acts.append(a)
                lps.append(lp)
                vals.append(v)
            acts, lps, vals = torch.stack(acts), torch.stack(lps), torch.stack(vals)
        res = [e.step(u) for e, u in zip(envs, acts.numpy())]
        for k, x in zip(("obs", "act", "logp", "val"), (torch.from_numpy(np.stack(obs)), acts, lps, vals)):
            buf[k].append(x)
        buf["rew"].append(torch.tensor([r[1] for r in res]))
        obs = [r[0] for r in res]
    return {k: torch.stack(x) for k, x in buf.items()}, obs


def update(agent, optim, b):
    ret = torch.zeros_like(b["rew"])
    run = b["val"][-1]
    for t in reversed(range(len(ret))):
        run = b["rew"][t] + 0.99 * run
        ret[t] = run
    adv = ret - b["val"]
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(6):
        d = Normal(agent.pi(b["obs"]), agent.log_std.exp())
        ratio = (d.log_prob(b["act"]).sum(-1) - b["logp"]).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        vl = (agent.v(b["obs"]).squeeze(-1) - ret).pow(2).mean()
        optim.zero_grad()
        (pg + 0.5 * vl).backward()
        optim.step()
    return b["rew"].mean().item()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(0)
    envs = [ArmEnv(i) for i in range(32)]
    obs = [e.reset() for e in envs]
    agent = Agent()
    optim = torch.optim.Adam(agent.parameters(), 3e-4)
    log, t0 = [], time.perf_counter()
    while time.perf_counter() - t0 < a.seconds:
        s = time.perf_counter()
        batch, obs = collect(agent, envs, obs, 16, a.better)
        rew = update(agent, optim, batch)
        log.append(time.perf_counter() - s)
    print("updates", len(log), "reward", rew)
    if a.times:
        json.dump(log, open(a.times, "w"))
