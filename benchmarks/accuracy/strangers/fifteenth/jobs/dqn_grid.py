"""Double DQN on a procedurally drawn grid world, several copies of the world at once."""

import argparse
import json
import random
import time
import warnings

import numpy as np
import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
ap.add_argument("--capacity", type=int, default=20_000)
ap.add_argument("--batch", type=int, default=256)
args = ap.parse_args()

warnings.filterwarnings("ignore")
random.seed(0), np.random.seed(0), torch.manual_seed(0)
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Worlds:
    def __init__(self, n=8, size=9):
        self.n, self.size = n, size
        self.pos = np.random.randint(0, size, (n, 2))
        self.goal = np.random.randint(0, size, (n, 2))

    def obs(self):
        row = np.eye(self.size)[self.pos[:, 0]], np.eye(self.size)[self.goal[:, 0]]
        col = np.eye(self.size)[self.pos[:, 1]], np.eye(self.size)[self.goal[:, 1]]
        return np.concatenate([*row, *col], 1).astype(np.float32)

    def step(self, a):
        self.pos = np.clip(self.pos + MOVES[a], 0, self.size - 1)
        done = (self.pos == self.goal).all(1)
        self.goal[done] = np.random.randint(0, self.size, (int(done.sum()), 2))
        return self.obs(), done.astype(np.float32) - 0.01, done.astype(np.float32)


class Memory:
    def __init__(self, capacity):
        self.capacity, self.head, self.items = capacity, 0, []

    def push(self, item):
        if len(self.items) < self.capacity:
            self.items.append(item)
        else:
            self.items[self.head] = item
            self.head = (self.head + 1) % self.capacity

    def sample(self, k):
        columns = zip(*random.sample(self.items, k))
        if args.better:
            return [torch.from_numpy(np.array(c)) for c in columns]
        return [torch.tensor(c) for c in columns]


def net():
    return nn.Sequential(nn.Linear(36, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


worlds, memory = Worlds(), Memory(args.capacity)
online, target = net(), net()
target.load_state_dict(online.state_dict())
opt = torch.optim.Adam(online.parameters(), lr=5e-4, fused=True)

o = worlds.obs()
while len(memory.items) < args.capacity:
    a = np.random.randint(0, 4, worlds.n)
    o2, r, d = worlds.step(a)
    for row in zip(o, a, r, o2, d):
        memory.push(row)
    o = o2

times, start = [], time.perf_counter()
while time.perf_counter() - start < args.seconds:
    t = time.perf_counter()
    with torch.no_grad():
        a = online(torch.from_numpy(o)).argmax(1).numpy()
    explore = np.random.rand(worlds.n) < 0.1
    a = np.where(explore, np.random.randint(0, 4, worlds.n), a)
    o2, r, d = worlds.step(a)
    for row in zip(o, a, r, o2, d):
        memory.push(row)
    o = o2
    s, act, rew, s2, done = memory.sample(args.batch)
    with torch.no_grad():
        best = online(s2).argmax(1, keepdim=True)
        y = rew + 0.98 * (1 - done) * target(s2).gather(1, best).squeeze(1)
    q = online(s).gather(1, act[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(q, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if len(times) % 200 == 0:
        target.load_state_dict(online.state_dict())
    times.append(time.perf_counter() - t)

print("updates", len(times), "td", loss.item())
if args.times:
    json.dump(times, open(args.times, "w"))
