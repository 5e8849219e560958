"""DQN with prioritized experience replay on a toy control problem."""

import argparse
import json
import time
import numpy as np
import torch
from torch import nn


class Replay:
    def __init__(self, capacity, as_array):
        self.capacity = capacity
        self.states = np.zeros((capacity, 8), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.next_states = np.zeros((capacity, 8), np.float32)
        self.priorities = np.zeros(capacity) if as_array else [0.0] * capacity
        self.pos, self.size = 0, 0

    def push(self, s, a, r, s2, priority=1.0):
        i = self.pos
        self.states[i], self.actions[i], self.rewards[i], self.next_states[i] = s, a, r, s2
        self.priorities[i] = priority
        self.pos = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, n, alpha=0.6, beta=0.4):
        prios = np.array(self.priorities[: self.size])
        cum = np.cumsum(prios**alpha) if args.better else np.cumsum([p**alpha for p in self.priorities[: self.size]])
        idx = np.searchsorted(cum, np.random.rand(n) * cum[-1]).clip(max=self.size - 1)
        weights = (self.size * prios[idx] ** alpha / cum[-1]) ** -beta
        cols = (self.states, self.actions, self.rewards, self.next_states)
        weights = torch.from_numpy((weights / weights.max()).astype(np.float32))
        return idx, [torch.from_numpy(c[idx]) for c in cols], weights

    def update(self, idx, errors):
        for i, e in zip(idx.tolist(), errors.tolist()):
            self.priorities[i] = abs(e) + 1e-3


class Env:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.m = self.rng.normal(size=(8, 8)).astype(np.float32) * 0.3
        self.s = self.rng.normal(size=8).astype(np.float32)

    def step(self, a):
        self.s = np.tanh(self.m @ self.s + 0.1 * (a - 2) + 0.1 * self.rng.normal(size=8)).astype(np.float32)
        return self.s, float(-np.square(self.s).sum())


def mlp():
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()
torch.manual_seed(0)
np.random.seed(0)

env, memory = Env(), Replay(60_000, args.better)
state = env.s
for _ in range(60_000):
    act = int(np.random.randint(5))
    nxt, rew = env.step(act)
    memory.push(state, act, rew, nxt)
    state = nxt

q, target = mlp(), mlp()
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
times, t0 = [], time.perf_counter()
while time.perf_counter() - t0 < args.seconds:
    tic = time.perf_counter()
    with torch.no_grad():
        act = int(q(torch.from_numpy(state)).argmax()) if np.random.rand() > 0.1 else int(np.random.randint(5))
    nxt, rew = env.step(act)
    memory.push(state, act, rew, nxt)
    state = nxt
    idx, (s, a, r, s2), w = memory.sample(128)
    with torch.no_grad():
        goal = r + 0.99 * target(s2).max(1).values
    td = goal - q(s).gather(1, a[:, None]).squeeze(1)
    loss = (w * td.square()).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    memory.update(idx, td.detach())
    if len(times) % 200 == 0:
        target.load_state_dict(q.state_dict())
    times.append(time.perf_counter() - tic)
print("td loss", loss.item())
if args.times:
    json.dump(times, open(args.times, "w"))
