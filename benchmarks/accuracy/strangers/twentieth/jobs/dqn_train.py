"""Double DQN on a point-mass navigation task with range-finder observations."""

import argparse
import copy
import json
import random
import time
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")
MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32) * 0.05
RAYS = 60


class PointMaze:
    """Walk to a goal in the unit square; the observation holds position, goal and distances to beacons."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.beacons = self.rng.random((RAYS, 2), dtype=np.float32)
        self.reset()

    def observe(self):
        d = np.sqrt(((self.beacons - self.pos) ** 2).sum(1))
        return np.concatenate([self.pos, self.goal, d]).astype(np.float32)

    def reset(self):
        self.pos = self.rng.random(2, dtype=np.float32)
        self.goal = self.rng.random(2, dtype=np.float32)
        self.t = 0
        return self.observe()

    def step(self, action):
        before = np.linalg.norm(self.pos - self.goal)
        self.pos = np.clip(self.pos + MOVES[action], 0, 1)
        after = np.linalg.norm(self.pos - self.goal)
        self.t += 1
        reached = after < 0.06
        reward = float(before - after) * 10 + (1.0 if reached else 0.0)
        return self.observe(), reward, bool(reached), self.t >= 100


class ReplayBuffer:
    def __init__(self, capacity, stacked=False):
        self.capacity = capacity
        self.stacked = stacked
        self.memory = []
        self.position = 0

    def push(self, *items):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.position] = Transition(*items)
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size):
        batch = Transition(*zip(*random.sample(self.memory, batch_size)))
        if self.stacked:
            states = torch.from_numpy(np.stack(batch.state))
            next_states = torch.from_numpy(np.stack(batch.next_state))
        else:
            states = torch.tensor(batch.state, dtype=torch.float32)
            next_states = torch.tensor(batch.next_state, dtype=torch.float32)
        actions = torch.tensor(batch.action)
        rewards = torch.tensor(batch.reward, dtype=torch.float32)
        done = torch.tensor(batch.done, dtype=torch.float32)
        return states, actions, rewards, next_states, done


def make_q(n_obs, n_actions):
    return nn.Sequential(nn.Linear(n_obs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, n_actions))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    env = PointMaze(0)
    q = make_q(RAYS + 4, len(MOVES))
    target = copy.deepcopy(q)
    opt = torch.optim.Adam(q.parameters(), lr=5e-4, fused=True)
    memory = ReplayBuffer(20_000, stacked=args.better)

    state = env.reset()
    for _ in range(2_000):
        action = random.randrange(len(MOVES))
        nxt, reward, done, cut = env.step(action)
        memory.push(state, action, reward, nxt, done)
        state = env.reset() if done or cut else nxt

    times, returns, ret, step = [], [], 0.0, 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        epsilon = max(0.05, 0.5 - step / 2000)
        for _ in range(4):
            if random.random() < epsilon:
                action = random.randrange(len(MOVES))
            else:
                with torch.no_grad():
                    action = int(q(torch.from_numpy(state)).argmax())
            nxt, reward, done, cut = env.step(action)
            memory.push(state, action, reward, nxt, done)
            ret += reward
            state = nxt
            if done or cut:
                returns.append(ret)
                ret, state = 0.0, env.reset()

        states, actions, rewards, next_states, done = memory.sample(256)
        with torch.no_grad():
            best = q(next_states).argmax(1, keepdim=True)
            goal = rewards + 0.98 * (1 - done) * target(next_states).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(q(states).gather(1, actions[:, None])[:, 0], goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 200 == 0:
            target.load_state_dict(q.state_dict())
            print(f"step {step} return {np.mean(returns[-20:]):.2f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
