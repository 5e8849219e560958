"""DQN for elevator dispatch. Replay memory of single transitions, double-Q targets."""

import argparse
import collections
import json
import random
import time

import numpy as np
import torch
import torch.nn as nn

Transition = collections.namedtuple("Transition", "obs action reward nxt done")


class Building:
    """Tiny stand-in for the real simulator: floors, calls and two cabins."""

    def __init__(self, floors=12, seed=0):
        self.rng = np.random.default_rng(seed)
        self.floors = floors
        self.dim = 4 * floors
        self.state = np.zeros(self.dim, np.float32)

    def step(self, action):
        f = self.floors
        self.state[:f] = np.minimum(self.state[:f] + (self.rng.random(f) < 0.05), 5)
        self.state[action % f] = 0
        self.state[f:] = np.roll(self.state[f:], 1)
        return self.state.copy(), -float(self.state[:f].sum()) / f, self.rng.random() < 0.01


class Replay:
    def __init__(self, capacity):
        self.memory = collections.deque(maxlen=capacity)

    def push(self, *fields):
        self.memory.append(Transition(*fields))

    def sample(self, n):
        return random.sample(self.memory, n)


class ListReplay(Replay):
    def __init__(self, capacity):
        self.memory, self.capacity, self.at = [], capacity, 0

    def push(self, *fields):
        if len(self.memory) < self.capacity:
            self.memory.append(Transition(*fields))
        else:
            self.memory[self.at] = Transition(*fields)
            self.at = (self.at + 1) % self.capacity


def q_net(dim, actions):
    return nn.Sequential(nn.Linear(dim, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, actions))


def collate(batch):
    t = Transition(*zip(*batch))
    return (
        torch.from_numpy(np.stack(t.obs)),
        torch.tensor(t.action),
        torch.tensor(t.reward),
        torch.from_numpy(np.stack(t.nxt)),
        torch.tensor(t.done, dtype=torch.float32),
    )


def learn(online, target, opt, batch, gamma=0.98):
    obs, action, reward, nxt, done = collate(batch)
    with torch.no_grad():
        best = online(nxt).argmax(1, keepdim=True)
        goal = reward + gamma * (1 - done) * target(nxt).gather(1, best).squeeze(1)
    q = online(obs).gather(1, action[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(q, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    env = Building()
    memory = (ListReplay if a.better else Replay)(600_000)
    obs = env.state.copy()
    for _ in range(600_000):  # warm start from the logged heuristic
        memory.push(obs, random.randrange(12), -random.random(), obs, False)
    online, target = q_net(env.dim, 12), q_net(env.dim, 12)
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=3e-4)
    times, stop = [], time.perf_counter() + a.seconds
    while time.perf_counter() < stop:
        t0 = time.perf_counter()
        with torch.no_grad():
            action = random.randrange(12) if random.random() < 0.1 else int(online(torch.from_numpy(obs)).argmax())
        nxt, reward, done = env.step(action)
        memory.push(obs, action, reward, nxt, done)
        obs = nxt
        loss = learn(online, target, opt, memory.sample(512))
        if len(times) % 200 == 0:
            target.load_state_dict(online.state_dict())
            print(len(times), "td", round(loss.item(), 4))
        times.append(time.perf_counter() - t0)
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
