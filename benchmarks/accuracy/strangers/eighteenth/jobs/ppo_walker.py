"""PPO on a vector of toy walkers: rollout, GAE, clipped updates."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal

N_ENVS, HORIZON, OBS, ACT = 16, 16, 24, 4


class Walkers:
    def __init__(self, n):
        self.rng = np.random.default_rng(0)
        self.mix = self.rng.normal(size=(ACT, OBS)).astype(np.float32) * 0.1
        self.obs = self.rng.normal(size=(n, OBS)).astype(np.float32)

    def step(self, actions):
        self.obs = (0.95 * self.obs + np.tanh(actions) @ self.mix).astype(np.float32)
        self.obs += 0.02 * self.rng.standard_normal(self.obs.shape, dtype=np.float32)
        return self.obs, self.obs[:, 0] - 0.01 * (actions**2).sum(1)


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.pi = nn.Sequential(
            nn.Linear(OBS, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, ACT)
        )
        self.v = nn.Sequential(
            nn.Linear(OBS, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )
        self.log_std = nn.Parameter(torch.zeros(ACT))

    def dist(self, obs):
        return Normal(self.pi(obs), self.log_std.exp(), validate_args=False)


@torch.no_grad()
def act_each(model, obs):
    actions, logps, values = [], [], []
    for o in obs:
        x = torch.from_numpy(o).unsqueeze(0)
        d = model.dist(x)
        a = d.sample()
        actions.append(a)
        logps.append(d.log_prob(a).sum(-1))
        values.append(model.v(x).squeeze(-1))
    return torch.cat(actions), torch.cat(logps), torch.cat(values)


@torch.no_grad()
def act_all(model, obs):
    x = torch.from_numpy(obs)
    d = model.dist(x)
    a = d.sample()
    return a, d.log_prob(a).sum(-1), model.v(x).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    act = act_all if args.better else act_each
    envs, model = Walkers(N_ENVS), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    obs = envs.obs
    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        roll = []
        for _ in range(HORIZON):
            a, logp, v = act(model, obs)
            nxt, reward = envs.step(a.numpy())
            roll.append((torch.from_numpy(obs), a, logp, v, torch.from_numpy(reward).float()))
            obs = nxt
        o, a, logp, v, r = (torch.stack(x) for x in zip(*roll))
        adv = torch.zeros_like(r)
        gae = torch.zeros(N_ENVS)
        with torch.no_grad():
            nv = model.v(torch.from_numpy(obs)).squeeze(-1)
        for t in reversed(range(HORIZON)):
            gae = r[t] + 0.99 * nv - v[t] + 0.99 * 0.95 * gae
            adv[t], nv = gae, v[t]
        ret = adv + v
        o, a, logp, adv, ret = (x.flatten(0, 1) for x in (o, a, logp, adv, ret))
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        for _ in range(4):
            ratio = (model.dist(o).log_prob(a).sum(-1) - logp).exp()
            policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            value_loss = (model.v(o).squeeze(-1) - ret).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} iterations, mean reward {r.mean().item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
