"""Rainbow-lite: double dueling DQN with prioritised replay on a synthetic lidar navigation task."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACTIONS, CAPACITY, ENVS = 32, 6, 1048576, 8


class NavEnvs:
    """A batch of point robots among noisy beacons."""

    def __init__(self, n, rng):
        self.rng = rng
        self.proj = rng.normal(size=(4, OBS)).astype(np.float32)
        self.moves = rng.normal(size=(ACTIONS, 2)).astype(np.float32) * 0.1
        self.state = rng.normal(size=(n, 4)).astype(np.float32)

    def observe(self):
        return np.tanh(self.state @ self.proj).astype(np.float32)

    def step(self, action):
        self.state[:, :2] += self.moves[action]
        gap = np.linalg.norm(self.state[:, :2] - self.state[:, 2:], axis=1)
        done = (gap < 0.1) | (gap > 4)
        self.state[done] = self.rng.normal(size=(int(done.sum()), 4))
        return self.observe(), -gap, done.astype(np.float32)


class Replay:
    def __init__(self, rng, tree=False, alpha=0.6):
        self.rng, self.alpha = rng, alpha
        self.obs = np.zeros((CAPACITY, OBS), np.float32)
        self.nxt = np.zeros((CAPACITY, OBS), np.float32)
        self.act = np.zeros(CAPACITY, np.int64)
        self.rew, self.done = np.zeros((2, CAPACITY), np.float32)
        self.priority = np.zeros(CAPACITY)
        self.sums = np.zeros(2 * CAPACITY) if tree else None
        self.at, self.size = 0, 0

    def add(self, obs, act, rew, nxt, done):
        idx = (self.at + np.arange(len(act))) % CAPACITY
        self.obs[idx], self.act[idx], self.rew[idx], self.nxt[idx], self.done[idx] = obs, act, rew, nxt, done
        self.at, self.size = int(idx[-1] + 1) % CAPACITY, min(self.size + len(act), CAPACITY)
        self.update(idx, np.ones(len(idx)))

    def update(self, idx, error):
        self.priority[idx] = error + 1e-5
        if self.sums is not None:
            node = idx + CAPACITY
            self.sums[node] = self.priority[idx] ** self.alpha
            while node[0] > 1:
                node = np.unique(node // 2)
                self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def draw(self, n):
        if self.sums is not None:
            target, node = self.rng.random(n) * self.sums[1], np.ones(n, np.int64)
            while node[0] < CAPACITY:
                left = self.sums[2 * node]
                target, node = target - left * (target >= left), 2 * node + (target >= left)
            idx = np.minimum(node - CAPACITY, self.size - 1)
            return idx, self.sums[idx + CAPACITY] / self.sums[1]
        probs = self.priority[: self.size] ** self.alpha
        probs /= probs.sum()
        idx = self.rng.choice(self.size, size=n, p=probs)
        return idx, probs[idx]

    def sample(self, n, beta=0.5):
        idx, p = self.draw(n)
        w = (self.size * p) ** -beta
        columns = [c[idx] for c in (self.obs, self.act, self.rew, self.nxt, self.done)]
        return idx, [torch.from_numpy(c) for c in columns + [(w / w.max()).astype(np.float32)]]


class Dueling(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.Linear(width, ACTIONS + 1)

    def forward(self, x):
        a, v = self.heads(self.body(x)).split([ACTIONS, 1], 1)
        return v + a - a.mean(1, keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    envs, buffer, online, target = NavEnvs(ENVS, rng), Replay(rng, tree=args.better), Dueling(), Dueling()
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=1e-4)
    warm = 900000  # demonstrations shipped with the simulator
    s = rng.standard_normal((warm, OBS), dtype=np.float32)
    buffer.add(s, rng.integers(0, ACTIONS, warm), rng.normal(size=warm), s, np.zeros(warm))
    obs, times, step, start = envs.observe(), [], 0, time.perf_counter()
    while (t0 := time.perf_counter()) - start < args.seconds:
        with torch.no_grad():
            greedy = online(torch.from_numpy(obs)).argmax(1).numpy()
        act = np.where(rng.random(ENVS) < 0.1, rng.integers(0, ACTIONS, ENVS), greedy)
        nxt, rew, done = envs.step(act)
        buffer.add(obs, act, rew, nxt, done)
        obs = nxt
        idx, (o, a, r, n, d, w) = buffer.sample(1024)
        with torch.no_grad():
            best = online(n).argmax(1, keepdim=True)
            goal = r + 0.99 * (1 - d) * target(n).gather(1, best).squeeze(1)
        q = online(o).gather(1, a[:, None]).squeeze(1)
        loss = (w * F.smooth_l1_loss(q, goal, reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        buffer.update(idx, (q - goal).abs().detach().numpy())
        if step % 500 == 0:
            target.load_state_dict(online.state_dict())
            print(f"step {step} loss {loss.item():.4f} reward {rew.mean():.3f}")
        step += 1
        times.append(time.perf_counter() - t0)
    if args.times:
        json.dump(times, open(args.times, "w"))


main()
