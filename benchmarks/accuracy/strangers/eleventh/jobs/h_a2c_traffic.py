"""A2C for adaptive traffic lights; sixteen simulated crossings in numpy."""

import argparse
import json
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

LANES, PHASES = 12, 4


class Crossings:
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.n = n
        self.queue = self.rng.poisson(3, (n, LANES)).astype(np.float32)
        self.phase = np.zeros(n, np.int64)
        self.served = np.zeros((PHASES, LANES), np.float32)
        for p in range(PHASES):
            self.served[p, p::PHASES] = 4.0

    def observe(self):
        onehot = np.eye(PHASES, dtype=np.float32)[self.phase]
        history = np.sqrt(self.queue)
        return np.concatenate([self.queue / 10, history, onehot], 1).astype(np.float32)

    def step(self, action):
        lost = np.where(action != self.phase, 0.5, 1.0).astype(np.float32)
        self.phase = action
        self.queue = np.maximum(self.queue - self.served[action] * lost[:, None], 0)
        self.queue = np.minimum(self.queue + self.rng.poisson(0.9, self.queue.shape), 40).astype(np.float32)
        reward = -self.queue.mean(1) / 10
        done = self.queue.max(1) >= 40
        self.queue[done] = 0
        return self.observe(), reward, done.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * LANES + PHASES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi, self.v = nn.Linear(width, PHASES), nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pi(h), validate_args=False), self.v(h).squeeze(-1)


def returns_and_advantages(rewards, values, dones, last_value, gamma, lam):
    adv = np.zeros_like(rewards)
    carry = np.zeros_like(last_value)
    for t in reversed(range(len(rewards))):
        following = last_value if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + gamma * following * (1 - dones[t]) - values[t]
        carry = delta + gamma * lam * (1 - dones[t]) * carry
        adv[t] = carry
    return adv + values, adv


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--crossings", type=int, default=128)
    ap.add_argument("--horizon", type=int, default=16)
    args = ap.parse_args()
    torch.manual_seed(0)
    env = Crossings(args.crossings, 0)
    net = ActorCritic()
    opt = torch.optim.RMSprop(net.parameters(), lr=7e-4, eps=1e-5)
    recent = deque(maxlen=100)
    obs = env.observe()
    times, update, begin = [], 0, time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        rows = {k: [] for k in ("obs", "act", "rew", "val", "done")}
        for _ in range(args.horizon):
            with torch.no_grad():
                dist, value = net(torch.from_numpy(obs))
                action = dist.sample().numpy()
            nxt, reward, done = env.step(action)
            for k, v in zip(rows, (obs, action, reward, value.numpy(), done)):
                rows[k].append(v)
            recent.append(float(reward.mean()))
            obs = nxt
        batch = {k: np.stack(v) for k, v in rows.items()}
        with torch.no_grad():
            last = net(torch.from_numpy(obs))[1].numpy()
        ret, adv = returns_and_advantages(batch["rew"], batch["val"], batch["done"], last, 0.99, 0.95)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        dist, value = net(torch.from_numpy(batch["obs"]).flatten(0, 1))
        logp = dist.log_prob(torch.from_numpy(batch["act"]).flatten())
        policy_loss = -(logp * torch.from_numpy(adv).flatten()).mean()
        value_loss = (value - torch.from_numpy(ret).flatten()).square().mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        if not args.better or update % 20 == 0:
            stats = (policy_loss.item(), value_loss.item(), dist.entropy().mean().item(), np.mean(recent))
        if update % 20 == 0:
            print("update %d policy %.3f value %.3f entropy %.3f reward %.3f" % (update, *stats))
        update += 1
        times.append(time.perf_counter() - t0)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
