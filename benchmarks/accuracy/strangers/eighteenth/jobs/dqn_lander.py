"""Double DQN with a replay memory on a toy landing task."""

import argparse
import json
import random
import time
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        batch = Transition(*zip(*random.sample(self.memory, batch_size)))
        return (
            torch.from_numpy(np.stack(batch.state)),
            torch.tensor(batch.action),
            torch.tensor(batch.reward, dtype=torch.float32),
            torch.from_numpy(np.stack(batch.next_state)),
            torch.tensor(batch.done, dtype=torch.float32),
        )


class ArrayMemory:
    def __init__(self, capacity, dim=8):
        self.state = np.zeros((capacity, dim), np.float32)
        self.next_state = np.zeros((capacity, dim), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.done = np.zeros(capacity, np.float32)
        self.capacity, self.pos, self.size = capacity, 0, 0

    def push(self, s, a, r, s2, d):
        i = self.pos
        self.state[i], self.action[i], self.reward[i], self.next_state[i], self.done[i] = s, a, r, s2, d
        self.pos = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch_size):
        i = np.random.randint(0, self.size, batch_size)
        return tuple(torch.from_numpy(x[i]) for x in (self.state, self.action, self.reward, self.next_state, self.done))


class Lander:
    def reset(self):
        self.s = np.random.randn(8).astype(np.float32) * 0.1
        self.t = 0
        return self.s

    def step(self, action):
        self.t += 1
        self.s = (0.98 * self.s + 0.05 * np.random.randn(8) + 0.01 * (action - 1.5)).astype(np.float32)
        return self.s, -float(np.abs(self.s[:2]).sum()), self.t >= 200


def q_network():
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)

    env = Lander()
    memory = ArrayMemory(200_000) if args.better else ReplayMemory(200_000)
    state = env.reset()
    warm = np.random.randn(200_001, 8).astype(np.float32) * 0.3
    for i in range(200_000):
        memory.push(warm[i], random.randrange(4), -float(abs(warm[i, 0])), warm[i + 1], i % 200 == 199)

    online, target = q_network(), q_network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3, fused=True)
    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        for _ in range(4):
            with torch.no_grad():
                action = random.randrange(4) if random.random() < 0.1 else int(online(torch.from_numpy(state)).argmax())
            nxt, reward, done = env.step(action)
            memory.push(state, action, reward, nxt, done)
            state = env.reset() if done else nxt
        s, a, r, s2, d = memory.sample(512)
        with torch.no_grad():
            best = online(s2).argmax(1, keepdim=True)
            y = r + 0.99 * (1 - d) * target(s2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(online(s).gather(1, a[:, None]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(times) % 500 == 499:
            target.load_state_dict(online.state_dict())
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} updates, td loss {loss.item():.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
