"""Deep Q-learning on a lane-keeping toy task with a replay memory."""

import argparse
import random
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACTIONS, BATCH, GAMMA = 32, 5, 128, 0.97


class Lane:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.road = np.cumsum(self.rng.normal(0, 0.05, 400))
        self.t, self.y, self.v = 0, 0.0, 0.0
        return self.view()

    def view(self):
        ahead = self.road[self.t : self.t + OBS - 2] - self.y
        return np.concatenate([ahead, [self.v, self.y - self.road[self.t]]]).astype(np.float32)

    def step(self, action):
        self.v = 0.8 * self.v + 0.05 * (action - ACTIONS // 2)
        self.y += self.v
        self.t += 1
        off = abs(self.y - self.road[self.t])
        done = off > 1.5 or self.t > 360
        return self.view(), 1.0 - off, done


class TupleMemory:
    def __init__(self, size):
        self.items = deque(maxlen=size)

    def push(self, s, a, r, s2, d):
        self.items.append((s.tolist(), a, r, s2.tolist(), d))

    def __len__(self):
        return len(self.items)

    def sample(self, n):
        s, a, r, s2, d = zip(*random.sample(self.items, n))
        return (
            torch.tensor(s),
            torch.tensor(a),
            torch.tensor(r, dtype=torch.float32),
            torch.tensor(s2),
            torch.tensor(d, dtype=torch.float32),
        )


class ArrayMemory:
    def __init__(self, size):
        self.s, self.s2 = np.zeros((size, OBS), np.float32), np.zeros((size, OBS), np.float32)
        self.a = np.zeros(size, np.int64)
        self.r, self.d = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.size, self.count = size, 0

    def push(self, s, a, r, s2, d):
        k = self.count % self.size
        self.s[k], self.a[k], self.r[k], self.s2[k], self.d[k] = s, a, r, s2, d
        self.count += 1

    def __len__(self):
        return min(self.count, self.size)

    def sample(self, n):
        k = np.random.randint(0, len(self), n)
        return tuple(torch.from_numpy(v[k]) for v in (self.s, self.a, self.r, self.s2, self.d))


def qnet(width=192):
    return nn.Sequential(
        nn.Linear(OBS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ACTIONS)
    )


class Agent:
    def __init__(self, memory):
        self.q, self.target = qnet(), qnet()
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=5e-4)
        self.memory, self.eps = memory, 1.0

    def act(self, s):
        if random.random() < self.eps:
            return random.randrange(ACTIONS)
        with torch.no_grad():
            return int(self.q(torch.from_numpy(s)).argmax())

    def learn(self):
        s, a, r, s2, d = self.memory.sample(BATCH)
        with torch.no_grad():
            goal = r + GAMMA * (1 - d) * self.target(s2).max(1).values
        loss = F.smooth_l1_loss(self.q(s).gather(1, a[:, None]).squeeze(1), goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    env, agent = Lane(), Agent((ArrayMemory if args.better else TupleMemory)(20_000))
    s, laps, score, scores = env.reset(), [], 0.0, deque(maxlen=20)
    t0 = prev = time.perf_counter()
    while prev - t0 < args.seconds:
        for _ in range(4):
            a = agent.act(s)
            s2, r, done = env.step(a)
            agent.memory.push(s, a, r, s2, done)
            s, score = s2, score + r
            if done:
                scores.append(score)
                s, score = env.reset(), 0.0
        if len(agent.memory) < 4 * BATCH:
            continue
        agent.learn()
        agent.eps = max(0.05, agent.eps * 0.999)
        if len(laps) % 200 == 0:
            agent.target.load_state_dict(agent.q.state_dict())
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    print(f"{len(laps)} updates, mean score {np.mean(scores):.1f}")
    if args.times:
        np.savetxt(args.times, laps)


if __name__ == "__main__":
    main()
