"""Double DQN with prioritised replay on a batch of small linear-quadratic environments."""

import argparse
import json
import copy
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACTIONS, ENVS = 32, 8, 16
CAPACITY, BATCH, ALPHA, BETA = 2**18, 256, 0.6, 0.4

torch.manual_seed(2)
rng = np.random.default_rng(2)


class Envs:
    """x' = A x + B[a] + noise; reward falls with |x|."""

    def __init__(self):
        a = rng.standard_normal((OBS, OBS)).astype(np.float32)
        self.a = 0.95 * a / np.abs(np.linalg.eigvals(a)).max().astype(np.float32)
        self.b = 0.5 * rng.standard_normal((ACTIONS, OBS)).astype(np.float32)
        self.x = rng.standard_normal((ENVS, OBS)).astype(np.float32)

    def step(self, act):
        noise = 0.05 * rng.standard_normal((ENVS, OBS)).astype(np.float32)
        self.x = np.clip(self.x @ self.a + self.b[act] + noise, -5, 5)
        return self.x, -np.square(self.x).mean(1)


class Replay:
    """Proportional prioritised replay (Schaul et al.)."""

    def __init__(self):
        self.obs = rng.standard_normal((CAPACITY, OBS)).astype(np.float32)
        self.nxt = self.obs + 0.1 * rng.standard_normal((CAPACITY, OBS)).astype(np.float32)
        self.act = rng.integers(0, ACTIONS, CAPACITY)
        self.rew = rng.standard_normal(CAPACITY).astype(np.float32)
        self.prio = np.ones(CAPACITY)
        self.at, self.top = 0, 1.0

    def add(self, obs, act, rew, nxt):
        i = (self.at + np.arange(len(act))) % CAPACITY
        self.obs[i], self.act[i], self.rew[i], self.nxt[i] = obs, act, rew, nxt
        self.set(i, np.full(len(act), self.top))
        self.at = int(i[-1] + 1) % CAPACITY

    def set(self, i, prio):
        self.prio[i] = prio
        self.top = max(self.top, float(prio.max()))

    def draw(self):
        p = self.prio**ALPHA
        p = p / p.sum()
        i = np.random.choice(CAPACITY, BATCH, p=p)
        return i, p[i]

    def sample(self):
        i, p = self.draw()
        w = (CAPACITY * p) ** -BETA
        w = (w / w.max()).astype(np.float32)
        pick = [torch.from_numpy(z[i]) for z in (self.obs, self.act, self.rew, self.nxt)]
        return i, torch.from_numpy(w), pick


class TreeReplay(Replay):
    """The same with a sum tree."""

    def __init__(self):
        super().__init__()
        self.tree = np.zeros(2 * CAPACITY)  # sum tree: leaves from CAPACITY on
        self.tree[CAPACITY:] = 1.0
        for level in range(17, -1, -1):
            k = np.arange(2**level, 2 ** (level + 1))
            self.tree[k] = self.tree[2 * k] + self.tree[2 * k + 1]

    def set(self, i, prio):
        self.tree[CAPACITY + i] = prio**ALPHA
        k = (CAPACITY + i) // 2
        while k[0] >= 1:
            self.tree[k] = self.tree[2 * k] + self.tree[2 * k + 1]
            k = k // 2
        self.top = max(self.top, float(prio.max()))

    def draw(self):
        u = np.random.random(BATCH) * self.tree[1]
        k = np.ones(BATCH, dtype=np.int64)
        while k[0] < CAPACITY:
            left = self.tree[2 * k]
            right = u >= left
            u = np.where(right, u - left, u)
            k = 2 * k + right
        return k - CAPACITY, self.tree[k] / self.tree[1]


def q_net():
    return nn.Sequential(nn.Linear(OBS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, ACTIONS))


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    np.random.seed(2)
    envs, replay = Envs(), TreeReplay() if opt.better else Replay()
    q = q_net()
    target = copy.deepcopy(q).requires_grad_(False)
    optim = torch.optim.Adam(q.parameters(), lr=3e-4, fused=True)
    obs, returns = envs.x, 0.0
    for step in steps_of(opt):
        with torch.no_grad():
            act = q(torch.from_numpy(obs)).argmax(1).numpy()
        explore = rng.random(ENVS) < 0.1
        act = np.where(explore, rng.integers(0, ACTIONS, ENVS), act)
        nxt, rew = envs.step(act)
        replay.add(obs, act, rew, nxt)
        obs = nxt
        returns += float(rew.mean())

        i, w, (o, a, r, n) = replay.sample()
        with torch.no_grad():
            best = q(n).argmax(1, keepdim=True)
            goal = r + 0.97 * target(n).gather(1, best).squeeze(1)
        td = q(o).gather(1, a.unsqueeze(1)).squeeze(1) - goal
        loss = (w * F.huber_loss(td, torch.zeros_like(td), reduction="none")).mean()
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        replay.set(i, td.detach().abs().numpy() + 1e-3)
        if (step + 1) % 250 == 0:
            target.load_state_dict(q.state_dict())
            print(f"step {step + 1} loss {loss.item():.3f} reward {returns / 250:.3f}", flush=True)
            returns = 0.0


if __name__ == "__main__":
    main()
