"""PPO on a vectorised toy environment (point mass)."""

import argparse, json, time
import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class PointEnv:
    def __init__(self, n, seed=0):
        self.n, self.rng = n, np.random.default_rng(seed)
        self.s = self.rng.standard_normal((n, 8)).astype(np.float32)

    def step(self, act):
        push = np.take(np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.float32), act, 0)
        self.s[:, :2] += 0.1 * push
        self.s[:, 2:] *= 0.99
        dist = np.linalg.norm(self.s[:, :2], axis=1)
        done = (dist > 3) | (self.rng.random(self.n) < 0.01)
        self.s[done] = self.rng.standard_normal((int(done.sum()), 8)).astype(np.float32)
        return self.s.copy(), -dist, done


class ActorCritic(nn.Module):
    def __init__(self, h=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi, self.v = nn.Linear(h, 4), nn.Linear(h, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Rollout:
    def __init__(self, T, n):
        self.obs, self.act = torch.zeros(T, n, 8), torch.zeros(T, n, dtype=torch.long)
        self.logp, self.val = torch.zeros(T, n), torch.zeros(T + 1, n)
        self.rew, self.done = torch.zeros(T, n), torch.zeros(T, n)


def advantages(ro, gamma=0.99, lam=0.95):
    T, n = ro.rew.shape
    adv = torch.zeros(T, n)
    for e in range(n):
        rew, val, done = ro.rew[:, e], ro.val[:, e], ro.done[:, e]
        running = 0.0
        for t in reversed(range(T)):
            alive = 1.0 - done[t].item()
            delta = rew[t].item() + gamma * val[t + 1].item() * alive - val[t].item()
            running = delta + gamma * lam * alive * running
            adv[t, e] = running
    return adv


def advantages_batched(ro, gamma=0.99, lam=0.95):
    adv, running = torch.zeros_like(ro.rew), torch.zeros(ro.rew.shape[1])
    for t in reversed(range(len(adv))):
        alive = 1 - ro.done[t]
        running = ro.rew[t] + gamma * ro.val[t + 1] * alive - ro.val[t] + gamma * lam * alive * running
        adv[t] = running
    return adv


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--envs", type=int, default=64)
    ap.add_argument("--horizon", type=int, default=48)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env, net = PointEnv(a.envs), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), 3e-4)
    gae = advantages_batched if a.better else advantages
    obs = torch.from_numpy(env.s.copy())
    times, t0 = [], time.perf_counter()
    begin = t0
    while t0 - begin < a.seconds or len(times) < 24:
        ro = Rollout(a.horizon, a.envs)
        with torch.no_grad():
            for t in range(a.horizon):
                d, v = net(obs)
                act = d.sample()
                nxt, r, done = env.step(act.numpy())
                ro.obs[t], ro.act[t], ro.logp[t], ro.val[t] = obs, act, d.log_prob(act), v
                ro.rew[t], ro.done[t] = torch.from_numpy(r), torch.from_numpy(done.astype(np.float32))
                obs = torch.from_numpy(nxt)
            ro.val[-1] = net(obs)[1]
        adv = gae(ro)
        ret = (adv + ro.val[:-1]).flatten()
        adv = ((adv - adv.mean()) / (adv.std() + 1e-8)).flatten()
        o, ac, lp = ro.obs.flatten(0, 1), ro.act.flatten(), ro.logp.flatten()
        for _ in range(2):
            for idx in torch.randperm(len(o)).split(512):
                d, v = net(o[idx])
                ratio = (d.log_prob(ac[idx]) - lp[idx]).exp()
                loss = (
                    -torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx]).mean()
                    + 0.5 * (v - ret[idx]).pow(2).mean()
                    - 0.01 * d.entropy().mean()
                )
                opt.zero_grad()
                loss.backward()
                opt.step()
        t1 = time.perf_counter()
        times.append(t1 - t0)
        t0 = t1
        if len(times) % 20 == 0:
            print(f"update {len(times)} reward {ro.rew.mean():.3f}")
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
