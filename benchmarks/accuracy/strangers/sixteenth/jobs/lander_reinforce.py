"""REINFORCE with baseline on a toy moon lander (vectorised)."""

import argparse
import json
import time

import torch
from torch import nn
from torch.distributions import Categorical


class Lander:
    """Height, speed, tilt, tilt rate of many landers at once."""

    def __init__(self, n, g):
        self.n, self.g = n, g
        self.reset()

    def reset(self):
        self.s = torch.randn(self.n, 4, generator=self.g) * 0.2 + torch.tensor([1.0, 0, 0, 0])
        return self.s

    def step(self, action):
        thrust = (action == 1).float()
        turn = (action == 2).float() - (action == 3).float()
        z, vz, a, w = self.s.unbind(1)
        vz = vz + 0.02 * (thrust * torch.cos(a) * 2 - 1)
        w = w + 0.05 * turn
        self.s = torch.stack([z + 0.05 * vz, vz, a + 0.05 * w, w * 0.99], 1)
        reward = -(self.s[:, 0].abs() + 0.3 * vz.abs() + 0.2 * a.abs()) - 0.05 * thrust
        return self.s, reward


class ActorCritic(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi, self.v = nn.Linear(width, 4), nn.Linear(width, 1)

    def forward(self, s):
        h = self.body(s)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def returns_single(rewards, gamma):
    steps, landers = rewards.shape
    out = torch.zeros(steps, landers)
    for k in range(landers):
        running = 0.0
        for t in range(steps - 1, -1, -1):
            running = rewards[t, k] + gamma * running
            out[t, k] = running
    return out


def returns_backward(rewards, gamma):
    out = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        running = rewards[t] + gamma * running
        out[t] = running
    return out


def collect(env, net, horizon):
    obs, acts, rews = [], [], []
    s = env.reset()
    with torch.no_grad():
        for _ in range(horizon):
            a = net(s)[0].sample()
            obs.append(s)
            acts.append(a)
            s, r = env.step(a)
            rews.append(r)
    return torch.stack(obs), torch.stack(acts), torch.stack(rews)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--envs", type=int, default=24)
    ap.add_argument("--horizon", type=int, default=250)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(40)
    env = Lander(args.envs, torch.Generator().manual_seed(1))
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=7e-4)
    discounted = returns_backward if args.better else returns_single
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        obs, acts, rews = collect(env, net, args.horizon)
        target = discounted(rews, 0.99)
        dist, value = net(obs)
        adv = target - value
        loss = -(dist.log_prob(acts) * adv.detach()).mean() + 0.5 * adv.square().mean() - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} updates, return {target[0].mean():.2f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
