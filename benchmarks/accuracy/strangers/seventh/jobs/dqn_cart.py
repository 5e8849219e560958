"""Double DQN on a vectorised toy control task."""

import argparse
import copy
import json
import random
import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

OBS, ACT, ENVS = 12, 5, 8


class Carts:
    """ENVS independent linear systems with discrete pushes."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.a = np.eye(OBS, dtype=np.float32) * 0.97 + 0.02 * self.rng.standard_normal((OBS, OBS)).astype(np.float32)
        self.b = self.rng.standard_normal((ACT, OBS)).astype(np.float32) * 0.2
        self.s = self.rng.standard_normal((ENVS, OBS)).astype(np.float32)

    def step(self, act):
        nxt = self.s @ self.a.T + self.b[act] + 0.05 * self.rng.standard_normal((ENVS, OBS)).astype(np.float32)
        reward = -np.square(nxt).mean(1)
        done = np.abs(nxt).max(1) > 6
        nxt[done] = self.rng.standard_normal((int(done.sum()), OBS))
        self.s = nxt
        return nxt, reward, done


class Replay:
    def __init__(self, cap):
        self.data = deque(maxlen=cap)

    def push(self, s, a, r, n, d):
        for i in range(len(s)):
            self.data.append(
                (
                    torch.tensor(s[i]),
                    torch.tensor(a[i]),
                    torch.tensor(r[i]),
                    torch.tensor(n[i]),
                    torch.tensor(float(d[i])),
                )
            )

    def sample(self, k):
        rows = random.sample(self.data, k)
        s, a, r, n, d = zip(*rows)
        return torch.stack(s), torch.stack(a), torch.stack(r), torch.stack(n), torch.stack(d)


class TableReplay:
    def __init__(self, cap):
        self.cap, self.n = cap, 0
        self.data = [
            np.zeros((cap, OBS), "f4"),
            np.zeros(cap, "i8"),
            np.zeros(cap, "f4"),
            np.zeros((cap, OBS), "f4"),
            np.zeros(cap, "f4"),
        ]

    def push(self, *cols):
        at = (self.n + np.arange(len(cols[0]))) % self.cap
        for store, c in zip(self.data, cols):
            store[at] = c
        self.n += len(at)

    def sample(self, k):
        at = np.random.randint(0, min(self.n, self.cap), k)
        return [torch.from_numpy(store[at]) for store in self.data]


class Agent:
    def __init__(self, memory, batch=256):
        self.memory, self.batch = memory, batch
        self.q = nn.Sequential(nn.Linear(OBS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ACT))
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.opt = torch.optim.Adam(self.q.parameters(), lr=5e-4, fused=True)

    @torch.no_grad()
    def act(self, obs, eps):
        greedy = self.q(torch.from_numpy(obs)).argmax(1).numpy()
        rand = np.random.randint(0, ACT, len(obs))
        return np.where(np.random.rand(len(obs)) < eps, rand, greedy)

    def learn(self):
        s, a, r, n, d = self.memory.sample(self.batch)
        with torch.no_grad():
            best = self.q(n).argmax(1, keepdim=True)
            y = r + 0.98 * (1 - d) * self.target(n).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(self.q(s).gather(1, a[:, None]).squeeze(1), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    env = Carts(0)
    agent = Agent((TableReplay if args.better else Replay)(20_000))
    obs = env.s
    for _ in range(1500):
        act = np.random.randint(0, ACT, ENVS)
        nxt, rew, done = env.step(act)
        agent.memory.push(obs, act, rew, nxt, done)
        obs = nxt
    times, t0 = [], time.perf_counter()
    last = t0
    while last - t0 < args.seconds:
        k = len(times)
        act = agent.act(obs, max(0.05, 1 - k / 500))
        nxt, rew, done = env.step(act)
        agent.memory.push(obs, act, rew, nxt, done)
        obs = nxt
        for _ in range(6):
            loss = agent.learn()
        if k % 200 == 0:
            agent.target.load_state_dict(agent.q.state_dict())
            print(k, "reward", round(float(rew.mean()), 3), "loss", round(loss.item(), 4))
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
