"""Double DQN with prioritised replay on a simulated container crane."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACTIONS = 24, 9


class CraneEnv:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.drift = self.rng.standard_normal((ACTIONS, OBS)).astype(np.float32) * 0.05
        self.state = np.zeros(OBS, np.float32)
        self.t = 0

    def step(self, action):
        noise = self.rng.standard_normal(OBS).astype(np.float32) * 0.02
        self.state = 0.98 * self.state + self.drift[action] + noise
        self.t += 1
        done = self.t >= 200
        reward = -float(np.abs(self.state[:4] - 0.5).sum())
        out = self.state
        if done:
            self.state, self.t = np.zeros(OBS, np.float32), 0
        return out, reward, done


class PrioritizedReplay:
    def __init__(self, capacity, alpha=0.6):
        self.capacity, self.alpha = capacity, alpha
        self.obs = np.zeros((capacity, OBS), np.float32)
        self.nxt = np.zeros((capacity, OBS), np.float32)
        self.act = np.zeros(capacity, np.int64)
        self.rew = np.zeros(capacity, np.float32)
        self.done = np.zeros(capacity, np.float32)
        self.size = self.pos = 0
        self.init_priorities()

    def init_priorities(self):
        self.prio = np.zeros(self.capacity)

    def set_priority(self, i, value):
        self.prio[i] = value

    def set_priorities(self, idx, value):
        self.prio[idx] = value

    def draw(self, n):
        p = self.prio[: self.size] ** self.alpha
        p = p / p.sum()
        idx = np.random.choice(self.size, n, p=p)
        return idx, p[idx]

    def prefill(self, rng):
        n = self.capacity
        self.obs[:] = rng.standard_normal((n, OBS))
        self.nxt[:] = self.obs + 0.05
        self.act[:] = rng.integers(0, ACTIONS, n)
        self.rew[:] = -rng.random(n)
        self.size = n
        self.set_priorities(np.arange(n), rng.random(n) + 0.1)

    def push(self, obs, act, rew, nxt, done):
        i = self.pos
        self.obs[i], self.act[i], self.rew[i], self.nxt[i], self.done[i] = obs, act, rew, nxt, done
        self.set_priority(i, 1.0)
        self.pos = (i + 1) % self.capacity
        self.size = max(self.size, i + 1)

    def sample(self, n, beta):
        idx, p = self.draw(n)
        w = (self.size * p) ** -beta
        w = (w / w.max()).astype(np.float32)
        fields = (self.obs[idx], self.act[idx], self.rew[idx], self.nxt[idx], self.done[idx], w)
        return idx, [torch.from_numpy(f) for f in fields]


class TreeReplay(PrioritizedReplay):
    def init_priorities(self):
        self.leaves = 1 << (self.capacity - 1).bit_length()
        self.tree = np.zeros(2 * self.leaves)

    def set_priority(self, i, value):
        node, tree = i + self.leaves, self.tree
        tree[node] = value**self.alpha
        while node > 1:
            node //= 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]

    def set_priorities(self, idx, value):
        node = np.unique(idx + self.leaves)
        self.tree[idx + self.leaves] = value**self.alpha
        while node[0] > 1:
            node = np.unique(node // 2)
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]

    def draw(self, n):
        u = np.random.random(n) * self.tree[1]
        node = np.ones(n, np.int64)
        while node[0] < self.leaves:
            node *= 2
            left = self.tree[node]
            right = u >= left
            u -= np.where(right, left, 0.0)
            node += right
        idx = np.minimum(node - self.leaves, self.size - 1)
        return idx, self.tree[idx + self.leaves] / self.tree[1]


class DuelingNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value = nn.Linear(width, 1)
        self.adv = nn.Linear(width, ACTIONS)

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    rng = np.random.default_rng(0)

    env = CraneEnv()
    replay = (TreeReplay if args.better else PrioritizedReplay)(400_000)
    replay.prefill(rng)
    online, target = DuelingNet(), DuelingNet()
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=3e-4, fused=True)

    times, step, obs, ret = [], 0, env.state, 0.0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        for _ in range(4):
            if rng.random() < 0.1:
                action = int(rng.integers(ACTIONS))
            else:
                with torch.inference_mode():
                    action = int(online(torch.from_numpy(obs)[None]).argmax())
            nxt, rew, done = env.step(action)
            replay.push(obs, action, rew, nxt, float(done))
            obs = env.state
            ret += rew

        idx, (o, a, r, n, d, w) = replay.sample(256, beta=min(1.0, 0.4 + step * 1e-5))
        with torch.no_grad():
            best = online(n).argmax(1, keepdim=True)
            goal = r + 0.99 * (1 - d) * target(n).gather(1, best).squeeze(1)
        q = online(o).gather(1, a[:, None]).squeeze(1)
        loss = (w * F.smooth_l1_loss(q, goal, reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        replay.set_priorities(idx, (q.detach() - goal).abs().numpy().astype(np.float64) + 1e-3)

        step += 1
        if step % 500 == 0:
            target.load_state_dict(online.state_dict())
        if step % 100 == 0:
            print(f"step {step} td loss {loss.item():.4f} return {ret:.1f}", flush=True)
            ret = 0.0
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
