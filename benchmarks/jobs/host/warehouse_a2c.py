"""Actor-critic agent for a small order-picking simulator with several parallel aisles."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class AisleSim:
    """All aisles are simulated together; a picker moves along a line of shelves."""

    N_OBS, N_ACT = 40, 5

    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.pos = np.zeros(n, dtype=np.int64)
        self.orders = self.rng.random((n, 32)) < 0.15
        self.clock = np.zeros(n, dtype=np.int64)

    def observe(self):
        obs = np.zeros((self.n, self.N_OBS), dtype=np.float32)
        obs[:, :32] = self.orders
        obs[:, 32] = self.pos / 32
        obs[:, 33] = self.clock / 100
        obs[:, 34] = self.orders.sum(1) / 8
        obs[np.arange(self.n), 35 + self.pos % 5] = 1
        return obs

    def step(self, action):
        move = np.array([-4, -1, 0, 1, 4])[action]
        self.pos = np.clip(self.pos + move, 0, 31)
        rows = np.arange(self.n)
        hit = self.orders[rows, self.pos]
        self.orders[rows, self.pos] = False
        fresh = self.rng.random(self.n) < 0.3
        self.orders[rows[fresh], self.rng.integers(0, 32, fresh.sum())] = True
        self.clock += 1
        done = self.clock >= 100
        self.clock[done] = 0
        self.pos[done] = 0
        reward = hit.astype(np.float32) - 0.02 * np.abs(move).astype(np.float32)
        return self.observe(), reward, done.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, n_obs, n_act, hidden=192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, n_act)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h).squeeze(-1)


@torch.no_grad()
def act(net, obs):
    logits, value = net(obs)
    action = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
    return action, value


def collect(net, sim, obs, horizon, opt):
    seen = np.empty((horizon + 1, sim.n, sim.N_OBS), dtype=np.float32)
    actions = np.empty((horizon, sim.n), dtype=np.int64)
    rewards = np.empty((horizon, sim.n), dtype=np.float32)
    values = np.empty((horizon + 1, sim.n), dtype=np.float32)
    dones = np.empty((horizon, sim.n), dtype=np.float32)
    for t in range(horizon):
        seen[t] = obs
        batch = torch.from_numpy(obs)
        groups = [batch] if opt.better else batch.split(1)
        picked = [act(net, group) for group in groups]
        actions[t] = torch.cat([a for a, _ in picked]).numpy()
        values[t] = torch.cat([v for _, v in picked]).numpy()
        obs, rewards[t], dones[t] = sim.step(actions[t])
    seen[horizon] = obs
    values[horizon] = act(net, torch.from_numpy(obs))[1].numpy()
    return obs, seen[:-1], actions, rewards, values, dones


def gae(rewards, values, dones, gamma=0.98, lam=0.95):
    adv = np.zeros_like(rewards)
    carry = np.zeros(rewards.shape[1], dtype=np.float32)
    for t in reversed(range(len(rewards))):
        alive = 1 - dones[t]
        delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
        carry = delta + gamma * lam * alive * carry
        adv[t] = carry
    return adv


def update(net, optim, seen, actions, adv, returns, epochs):
    obs = torch.from_numpy(seen).flatten(0, 1)
    actions = torch.from_numpy(actions).flatten()
    adv = torch.from_numpy(adv).flatten()
    returns = torch.from_numpy(returns).flatten()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    with torch.no_grad():
        old = net(obs)[0].log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
    for _ in range(epochs):
        for idx in torch.randperm(len(obs)).chunk(2):
            logits, value = net(obs[idx])
            logp = logits.log_softmax(-1)
            ratio = (logp.gather(1, actions[idx, None]).squeeze(1) - old[idx]).exp()
            gain = torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx])
            entropy = -(logp.exp() * logp).sum(-1).mean()
            loss = -gain.mean() + 0.5 * F.mse_loss(value, returns[idx]) - 0.01 * entropy
            optim.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optim.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--aisles", type=int, default=16)
    ap.add_argument("--horizon", type=int, default=32)
    opt = ap.parse_args()
    torch.manual_seed(0)
    sim = AisleSim(opt.aisles, seed=2)
    net = ActorCritic(sim.N_OBS, sim.N_ACT)
    optim = torch.optim.Adam(net.parameters(), lr=7e-4, fused=True)
    obs, times = sim.observe(), []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        obs, seen, actions, rewards, values, dones = collect(net, sim, obs, opt.horizon, opt)
        adv = gae(rewards, values, dones)
        update(net, optim, seen, actions, adv, adv + values[:-1], epochs=4)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 40 == 0:
            print(f"iteration {len(times)} mean reward {rewards.mean():.3f}")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
