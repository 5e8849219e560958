"""DQN on a small vectorised grid world with a large replay memory."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE, N_ENVS, OBS = 9, 64, 4


class GridWorld:
    moves = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, rng):
        self.rng = rng
        self.pos = rng.integers(0, SIZE, (N_ENVS, 2))
        self.goal = rng.integers(0, SIZE, (N_ENVS, 2))

    def obs(self):
        return np.concatenate([self.pos, self.goal], 1).astype(np.float32) / SIZE

    def step(self, action):
        self.pos = np.clip(self.pos + self.moves[action], 0, SIZE - 1)
        done = (self.pos == self.goal).all(1)
        n = int(done.sum())
        if n:
            self.pos[done] = self.rng.integers(0, SIZE, (n, 2))
            self.goal[done] = self.rng.integers(0, SIZE, (n, 2))
        return self.obs(), np.where(done, 1.0, -0.02).astype(np.float32), done


class Replay:
    def __init__(self, capacity, seed):
        self.capacity, self.n, self.at = capacity, 0, 0
        self.rng = np.random.RandomState(seed)
        self.gen = np.random.default_rng(seed)
        self.o = np.zeros((capacity, OBS), np.float32)
        self.o2 = np.zeros((capacity, OBS), np.float32)
        self.a = np.zeros(capacity, np.int64)
        self.r = np.zeros(capacity, np.float32)
        self.d = np.zeros(capacity, np.float32)

    def add(self, o, a, r, o2, d):
        idx = (self.at + np.arange(len(a))) % self.capacity
        self.o[idx], self.a[idx], self.r[idx], self.o2[idx], self.d[idx] = o, a, r, o2, d
        self.at = (self.at + len(a)) % self.capacity
        self.n = min(self.capacity, self.n + len(a))

    def sample(self, batch):
        idx = self.rng.choice(self.n, batch, replace=False)
        return self.take(idx)

    def sample_indices(self, batch):
        return self.take(self.gen.choice(self.n, batch, replace=False, shuffle=False))

    def take(self, idx):
        return [torch.from_numpy(v[idx]) for v in (self.o, self.a, self.r, self.o2, self.d)]


def qnet(width=256):
    return nn.Sequential(
        nn.Linear(OBS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 4),
    )


def main(args):
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    env, memory = GridWorld(rng), Replay(800_000, 1)
    draw = memory.sample_indices if args.better else memory.sample
    q, target = qnet(), qnet()
    target.load_state_dict(q.state_dict())
    opt = torch.optim.RMSprop(q.parameters(), 3e-4)

    obs = env.obs()
    while memory.n < 780_000:  # random warm-up
        act = rng.integers(0, 4, N_ENVS)
        nxt, rew, done = env.step(act)
        memory.add(obs, act, rew, nxt, done)
        obs = nxt

    times, begin = [], time.perf_counter()
    mark, total = begin, 0.0
    for step in range(4000):
        with torch.no_grad():
            act = q(torch.from_numpy(obs)).argmax(1).numpy()
        act = np.where(rng.random(N_ENVS) < 0.1, rng.integers(0, 4, N_ENVS), act)
        nxt, rew, done = env.step(act)
        memory.add(obs, act, rew, nxt, done)
        obs, total = nxt, total + float(rew.sum())

        o, a, r, o2, d = draw(768)
        with torch.no_grad():
            best = q(o2).argmax(1, keepdim=True)
            y = r + 0.97 * (1 - d) * target(o2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q(o).gather(1, a[:, None]).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 200 == 0:
            target.load_state_dict(q.state_dict())
            print(step, round(total, 1), round(loss.item(), 4))
            total = 0.0
        now = time.perf_counter()
        times.append(now - mark)
        mark = now
        if now - begin > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=15)
    main(ap.parse_args())
