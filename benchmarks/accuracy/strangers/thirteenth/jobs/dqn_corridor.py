"""DQN on a small vectorised corridor world (no gym needed)."""

import argparse
import random
import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim


class Corridor:
    """N agents walk in a 2-D corridor; reward for reaching the (moving) exit."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.pos = rng.uniform(-1, 1, (n, 2))
        self.exit = rng.uniform(-1, 1, (n, 2))
        self.age = np.zeros(n)

    def obs(self):
        d = self.exit - self.pos
        return np.concatenate([self.pos, self.exit, d, np.hypot(*d.T)[:, None], self.age[:, None] / 50], 1).astype(
            np.float32
        )

    def step(self, action):
        move = np.array([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])[action] * 0.1
        self.pos = np.clip(self.pos + move + self.rng.normal(0, 0.01, move.shape), -1, 1)
        self.age += 1
        near = np.hypot(*(self.exit - self.pos).T) < 0.12
        done = near | (self.age > 50)
        reward = np.where(near, 1.0, -0.01).astype(np.float32)
        k = int(done.sum())
        self.pos[done] = self.rng.uniform(-1, 1, (k, 2))
        self.exit[done] = self.rng.uniform(-1, 1, (k, 2))
        self.age[done] = 0
        return self.obs(), reward, done


class Experience:
    __slots__ = ("s", "a", "r", "s2", "d", "priority")

    def __init__(self, s, a, r, s2, d, priority):
        self.s, self.a, self.r, self.s2, self.d, self.priority = s, a, r, s2, d, priority


class Replay:
    """Prioritised replay: chance ~ priority ** alpha."""

    def __init__(self, capacity, arrays, alpha=0.6):
        self.capacity, self.arrays, self.alpha = capacity, arrays, alpha
        self.store, self.head, self.top = [], 0, 1.0
        self.weight = np.zeros(capacity)

    def push(self, s, a, r, s2, d):
        e = Experience(s, a, r, s2, d, self.top)
        if len(self.store) < self.capacity:
            self.store.append(e)
        else:
            self.store[self.head] = e
        self.weight[self.head] = self.top**self.alpha
        self.head = (self.head + 1) % self.capacity

    def sample(self, k):
        if self.arrays:
            edges = np.cumsum(self.weight[: len(self.store)])
            index = np.searchsorted(edges, np.random.random(k) * edges[-1]).tolist()
        else:
            weights = [e.priority**self.alpha for e in self.store]
            index = random.choices(range(len(self.store)), weights=weights, k=k)
        rows = [self.store[i] for i in index]
        batch = (
            torch.from_numpy(np.stack([e.s for e in rows])),
            torch.tensor([e.a for e in rows]),
            torch.tensor([e.r for e in rows]),
            torch.from_numpy(np.stack([e.s2 for e in rows])),
            torch.tensor([e.d for e in rows], dtype=torch.float32),
        )
        return index, batch

    def reprioritise(self, index, errors):
        for i, err in zip(index, errors.tolist()):
            p = abs(err) + 1e-3
            self.store[i].priority = p
            self.weight[i] = p**self.alpha
            self.top = max(self.top, p)


class Duelling(nn.Module):
    def __init__(self, n_obs=8, n_act=5, width=512):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.adv = nn.Linear(width, 1), nn.Linear(width, n_act)

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


def td_update(online, target, opt, batch, gamma=0.97):
    s, a, r, s2, d = batch
    q = online(s).gather(1, a[:, None]).squeeze(1)
    with torch.no_grad():
        best = online(s2).argmax(1, keepdim=True)
        y = r + gamma * (1 - d) * target(s2).gather(1, best).squeeze(1)
    loss = F.smooth_l1_loss(q, y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 10)
    opt.step()
    return loss.item(), (q - y).detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env = Corridor(16, rng)
    online, target = Duelling(), Duelling()
    target.load_state_dict(online.state_dict())
    opt = optim.Adam(online.parameters(), lr=3e-4)
    memory = Replay(40_000, arrays=a.better)
    obs = env.obs()

    def act_and_store(obs, eps):
        with torch.no_grad():
            greedy = online(torch.from_numpy(obs)).argmax(1).numpy()
        action = np.where(rng.random(env.n) < eps, rng.integers(0, 5, env.n), greedy)
        nxt, rew, done = env.step(action)
        for j in range(env.n):
            memory.push(obs[j], int(action[j]), float(rew[j]), nxt[j], bool(done[j]))
        return nxt, rew

    while len(memory.store) < memory.capacity:
        obs, _ = act_and_store(obs, 1.0)
    durations, step, returns = [], 0, deque(maxlen=500)
    end = time.perf_counter() + a.seconds
    while time.perf_counter() < end:
        t = time.perf_counter()
        obs, rew = act_and_store(obs, max(0.05, 1 - step / 2000))
        returns.append(rew.mean())
        index, batch = memory.sample(256)
        loss, errors = td_update(online, target, opt, batch)
        memory.reprioritise(index, errors)
        if step % 200 == 0:
            target.load_state_dict(online.state_dict())
            print(f"{step} loss {loss:.4f} reward {np.mean(returns):.4f}")
        step += 1
        durations.append(time.perf_counter() - t)
    if a.times:
        np.savetxt(a.times, durations)


if __name__ == "__main__":
    main()
