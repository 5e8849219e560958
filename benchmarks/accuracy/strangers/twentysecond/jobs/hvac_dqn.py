"""Double DQN for a building-climate controller; one update per six simulated minutes."""

import argparse
import json
import random
import time
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Move = namedtuple("Move", "obs action reward after done")


class Building:
    """Rooms with thermal coupling; actions pick a heating pattern."""

    def __init__(self, rooms=48, seed=0):
        self.rng = np.random.default_rng(seed)
        self.rooms = rooms
        self.coupling = self.rng.random((rooms, rooms)).astype(np.float32)
        self.coupling /= self.coupling.sum(1, keepdims=True)
        self.patterns = self.rng.random((8, rooms)).astype(np.float32)
        self.reset()

    def reset(self):
        self.temp = self.rng.normal(18, 2, self.rooms).astype(np.float32)
        self.minute = 0
        return self.observe()

    def observe(self):
        outside = 5 + 5 * np.sin(self.minute / 200)
        clock = np.array([np.sin(self.minute / 60), np.cos(self.minute / 60), outside / 10], dtype=np.float32)
        return np.concatenate([(self.temp - 21) / 4, clock])

    def step(self, action):
        outside = 5 + 5 * np.sin(self.minute / 200)
        mixed = self.coupling @ self.temp
        self.temp += 0.1 * (mixed - self.temp) - 0.01 * (self.temp - outside) + 0.4 * self.patterns[action]
        self.temp = self.temp.astype(np.float32)
        self.minute += 1
        reward = -float(np.abs(self.temp - 21).mean()) - 0.1 * float(self.patterns[action].mean())
        return self.observe(), reward, self.minute >= 400


class Memory:
    def __init__(self, size, opt):
        self.size, self.opt = size, opt
        self.moves, self.cursor = [], 0

    def push(self, *fields):
        if len(self.moves) < self.size:
            self.moves.append(None)
        self.moves[self.cursor] = Move(*fields)
        self.cursor = (self.cursor + 1) % self.size

    def sample(self, n):
        rows = Move(*zip(*random.sample(self.moves, n)))
        pack = np.stack if self.opt.better else list
        obs = torch.tensor(pack(rows.obs))
        after = torch.tensor(pack(rows.after))
        action = torch.tensor(rows.action)
        reward = torch.tensor(rows.reward, dtype=torch.float32)
        done = torch.tensor(rows.done, dtype=torch.float32)
        return obs, action, reward, after, done


class QNet(nn.Module):
    def __init__(self, n_obs, n_act, hidden=288):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.adv = nn.Linear(hidden, n_act)

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


def learn(net, target, optim, batch, gamma=0.97):
    obs, action, reward, after, done = batch
    with torch.no_grad():
        best = net(after).argmax(1, keepdim=True)
        goal = reward + gamma * (1 - done) * target(after).gather(1, best).squeeze(1)
    q = net(obs).gather(1, action[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, goal)
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    env = Building()
    obs = env.reset()
    net, target = QNet(len(obs), 8), QNet(len(obs), 8)
    target.load_state_dict(net.state_dict())
    optim = torch.optim.Adam(net.parameters(), lr=5e-4, fused=True)
    memory = Memory(20000, opt)
    for _ in range(1500):
        action = random.randrange(8)
        after, reward, done = env.step(action)
        memory.push(obs, action, reward, after, done)
        obs = env.reset() if done else after

    times, recent = [], 0.0
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for _ in range(6):
            if random.random() < 0.1:
                action = random.randrange(8)
            else:
                with torch.inference_mode():
                    action = int(net(torch.from_numpy(obs)).argmax())
            after, reward, done = env.step(action)
            memory.push(obs, action, reward, after, done)
            recent += 0.01 * (reward - recent)
            obs = env.reset() if done else after
        learn(net, target, optim, memory.sample(opt.batch))
        if len(times) % 200 == 199:
            target.load_state_dict(net.state_dict())
            print(f"update {len(times) + 1} reward {recent:.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
