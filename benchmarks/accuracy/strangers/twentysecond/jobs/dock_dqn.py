"""Double DQN for the docking task (vectorised simulator, lidar observations)."""

import argparse
import collections
import copy
import json
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BEAMS = 64
ACTIONS = 6
Transition = collections.namedtuple("Transition", "obs action reward next_obs done")


class DockSim:
    """Several boats approaching a dock; the observation is a lidar sweep around each boat."""

    def __init__(self, boats, seed=0):
        self.rng = np.random.default_rng(seed)
        self.boats = boats
        self.angles = np.linspace(0, 2 * np.pi, BEAMS, endpoint=False, dtype=np.float32)
        self.state = self._fresh(boats)

    def _fresh(self, n):
        return np.concatenate([self.rng.uniform(-5, 5, (n, 2)), np.zeros((n, 2))], 1).astype(np.float32)

    def sweep(self):
        x, y, vx, vy = self.state.T[:, :, None]
        c, s = np.cos(self.angles), np.sin(self.angles)
        return (np.tanh(0.2 * (x * c + y * s)) + 0.1 * (vx * c + vy * s)).astype(np.float32)

    def step(self, actions):
        heading = actions * (2 * np.pi / ACTIONS)
        self.state[:, 2] = 0.9 * self.state[:, 2] + 0.1 * np.cos(heading)
        self.state[:, 3] = 0.9 * self.state[:, 3] + 0.1 * np.sin(heading)
        self.state[:, :2] += self.state[:, 2:]
        dist = np.linalg.norm(self.state[:, :2], axis=1)
        done = (dist < 0.4) | (dist > 9)
        reward = -0.01 * dist + 5.0 * (dist < 0.4)
        obs = self.sweep()
        if done.any():
            self.state[done] = self._fresh(int(done.sum()))
        return obs, reward.astype(np.float32), done


class Replay:
    def __init__(self, capacity, stacked=False):
        self.items = []
        self.capacity, self.where = capacity, 0
        self.stacked = stacked

    def add(self, *fields):
        for row in zip(*fields):
            if len(self.items) < self.capacity:
                self.items.append(None)
            self.items[self.where] = Transition(*row)
            self.where = (self.where + 1) % self.capacity

    def sample(self, n):
        batch = Transition(*zip(*random.sample(self.items, n)))
        if self.stacked:
            batch = Transition(*map(np.stack, batch))
        return Transition(
            torch.as_tensor(batch.obs, dtype=torch.float32),
            torch.as_tensor(batch.action, dtype=torch.int64),
            torch.as_tensor(batch.reward, dtype=torch.float32),
            torch.as_tensor(batch.next_obs, dtype=torch.float32),
            torch.as_tensor(batch.done, dtype=torch.float32),
        )


class QNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(BEAMS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, ACTIONS)

    def forward(self, obs):
        h = self.body(obs)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


def learn(net, target, optimizer, batch, gamma=0.98):
    with torch.no_grad():
        best = net(batch.next_obs).argmax(1, keepdim=True)
        future = target(batch.next_obs).gather(1, best).squeeze(1)
        goal = batch.reward + gamma * (1 - batch.done) * future
    value = net(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=384)
    args = ap.parse_args()
    random.seed(0)
    torch.manual_seed(0)

    sim = DockSim(boats=16)
    net = QNet()
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    replay = Replay(50_000, stacked=args.better)
    obs, times, step = sim.sweep(), [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        with torch.inference_mode():
            action = net(torch.from_numpy(obs)).argmax(1).numpy()
        explore = sim.rng.random(sim.boats) < max(0.05, 1 - step / 2000)
        action = np.where(explore, sim.rng.integers(0, ACTIONS, sim.boats), action)
        nxt, reward, done = sim.step(action)
        replay.add(obs, action, reward, nxt, done)
        obs = sim.sweep() if done.any() else nxt
        step += 1
        if len(replay.items) < 2000:
            continue
        for _ in range(2):
            loss = learn(net, target, optimizer, replay.sample(args.batch))
        if step % 250 == 0:
            target.load_state_dict(net.state_dict())
            print(f"step {step} loss {loss.item():.4f}")
        times.append(time.perf_counter() - t)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
