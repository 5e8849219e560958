# DQN baseline, grid observation flattened (homework 3, deep RL)
import argparse, json, random, time
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")
OBS, ACTIONS = 150, 6


class GridWorld:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.proj = self.rng.standard_normal((ACTIONS, OBS)).astype(np.float32) * 0.2
        self.reset()

    def reset(self):
        self.s = self.rng.standard_normal(OBS).astype(np.float32)
        self.t = 0
        return self.s

    def step(self, a):
        self.s = (0.95 * self.s + self.proj[a]).astype(np.float32)
        self.t += 1
        r = float(-np.abs(self.s[:10]).mean())
        return self.s, r, self.t >= 200


class Memory:
    def __init__(self, size=20_000):
        self.buf = deque(maxlen=size)

    def push(self, *args):
        self.buf.append(Transition(*args))

    def sample(self, n):
        return Transition(*zip(*random.sample(self.buf, n)))


def qnet():
    return nn.Sequential(nn.Linear(OBS, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, ACTIONS))


class Agent:
    def __init__(self, better):
        self.q, self.target = qnet(), qnet().requires_grad_(False)
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.RMSprop(self.q.parameters(), lr=2.5e-4, foreach=True)
        self.better = better
        self.eps = 1.0

    def act(self, s):
        self.eps = max(0.05, self.eps * 0.999)
        if random.random() < self.eps:
            return random.randrange(ACTIONS)
        with torch.no_grad():
            return int(self.q(torch.from_numpy(s)).argmax())

    def to_batch(self, b):
        if self.better:
            s, s2 = torch.from_numpy(np.stack(b.state)), torch.from_numpy(np.stack(b.next_state))
        else:
            s, s2 = torch.FloatTensor(b.state), torch.FloatTensor(b.next_state)
        return s, torch.tensor(b.action), torch.tensor(b.reward), s2, torch.tensor(b.done, dtype=torch.float32)

    def learn(self, batch, gamma=0.99):
        s, a, r, s2, d = self.to_batch(batch)
        with torch.no_grad():
            y = r + gamma * (1 - d) * self.target(s2).amax(1)
        loss = F.smooth_l1_loss(self.q(s).gather(1, a[:, None]).squeeze(1), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    random.seed(1)
    torch.manual_seed(1)

    env, memory, agent = GridWorld(), Memory(), Agent(args.better)
    s = env.reset()
    for _ in range(2000):
        a = random.randrange(ACTIONS)
        s2, r, done = env.step(a)
        memory.push(s, a, r, s2, done)
        s = env.reset() if done else s2

    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t0 = time.perf_counter()
        for _ in range(4):
            a = agent.act(s)
            s2, r, done = env.step(a)
            memory.push(s, a, r, s2, done)
            s = env.reset() if done else s2
        loss = agent.learn(memory.sample(256))
        if len(times) % 250 == 249:
            agent.target.load_state_dict(agent.q.state_dict())
            print(f"learn step {len(times) + 1}, td loss {loss.item():.4f}, eps {agent.eps:.2f}")
        times.append(time.perf_counter() - t0)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
