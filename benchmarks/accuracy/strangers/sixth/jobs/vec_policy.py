"""A2C on a handful of hand-written cart-pole copies."""

import argparse
import json
import math
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

N_ENVS = 8
HORIZON = 8


class CartPole:
    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.s = self.rng.uniform(-0.05, 0.05, 4)
        self.t = 0
        return self.s.astype(np.float32)

    def step(self, a):
        x, xd, th, thd = self.s
        f = 10.0 if a == 1 else -10.0
        c, s = math.cos(th), math.sin(th)
        tmp = (f + 0.05 * thd * thd * s) / 1.1
        tha = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        xa = tmp - 0.05 * tha * c / 1.1
        self.s = np.array([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha])
        self.t += 1
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21 or self.t >= 300
        obs = self.reset() if done else self.s.astype(np.float32)
        return obs, 1.0, done


class ActorCritic(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, 2)
        self.v = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


class Rollout:
    def __init__(self, net, together):
        rng = np.random.default_rng(0)
        self.net = net
        self.envs = [CartPole(rng) for _ in range(N_ENVS)]
        self.obs = np.stack([e.reset() for e in self.envs])
        self.together = together

    @torch.no_grad()
    def act(self):
        if self.together:
            logits, _ = self.net(torch.from_numpy(self.obs))
            return Categorical(logits=logits, validate_args=False).sample().tolist()
        actions = []
        for o in self.obs:
            logits, _ = self.net(torch.from_numpy(o).unsqueeze(0))
            actions.append(Categorical(logits=logits, validate_args=False).sample().item())
        return actions

    def collect(self):
        obs = np.empty((HORIZON, N_ENVS, 4), np.float32)
        act = np.empty((HORIZON, N_ENVS), np.int64)
        rew = np.empty((HORIZON, N_ENVS), np.float32)
        live = np.empty((HORIZON, N_ENVS), np.float32)
        for t in range(HORIZON):
            obs[t] = self.obs
            actions = self.act()
            nxt = np.empty_like(self.obs)
            for k, (env, a) in enumerate(zip(self.envs, actions)):
                nxt[k], rew[t, k], done = env.step(a)
                live[t, k] = 1.0 - done
            act[t] = actions
            self.obs = nxt
        return [torch.from_numpy(a) for a in (obs, act, rew, live)]


def returns(rew, live, last, gamma=0.99):
    out = torch.empty_like(rew)
    for t in range(HORIZON - 1, -1, -1):
        last = rew[t] + gamma * live[t] * last
        out[t] = last
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=7e-4, fused=True)
    roll = Rollout(net, args.better)
    times, t0 = [], time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        s = time.perf_counter()
        obs, act, rew, live = roll.collect()
        with torch.no_grad():
            last = net(torch.from_numpy(roll.obs))[1]
        ret = returns(rew, live, last)
        logits, v = net(obs)
        dist = Categorical(logits=logits, validate_args=False)
        adv = ret - v.detach()
        loss = -(dist.log_prob(act) * adv).mean() + 0.5 * (ret - v).pow(2).mean() - 0.01 * dist.entropy().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        times.append(time.perf_counter() - s)
        if len(times) % 100 == 0:
            print(f"update {len(times)} loss {loss.item():.3f} ends {int((1 - live).sum())}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
