"""Policy gradient with generalised advantages on a toy environment of many actors."""

import argparse
import json
import time

import torch
from torch import nn
from torch.distributions import Categorical


class Actor(nn.Module):
    def __init__(self, obs=32, hidden=512, actions=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def advantages(rewards, values, dones, gamma=0.99, lam=0.95):
    steps, actors = rewards.shape
    out = torch.zeros_like(rewards)
    for a in range(actors):
        running = torch.zeros(())
        for t in reversed(range(steps - 1)):
            mask = 1.0 - dones[t, a]
            delta = rewards[t, a] + gamma * values[t + 1, a] * mask - values[t, a]
            running = delta + gamma * lam * mask * running
            out[t, a] = running
    return out


def advantages_at_once(rewards, values, dones, gamma=0.99, lam=0.95):
    out = torch.zeros_like(rewards)
    running = torch.zeros(rewards.shape[1])
    mask = 1.0 - dones
    delta = rewards[:-1] + gamma * values[1:] * mask[:-1] - values[:-1]
    for t in reversed(range(rewards.shape[0] - 1)):
        running = delta[t] + gamma * lam * mask[t] * running
        out[t] = running
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Actor()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    estimate = advantages_at_once if args.better else advantages
    times, start = [], time.perf_counter()
    last = start
    state = torch.randn(16, 32)
    mixing = torch.randn(6, 32) * 0.1
    while True:
        observations, actions, rewards, dones = [], [], [], []
        with torch.no_grad():
            for _ in range(64):
                policy, _ = model(state)
                action = policy.sample()
                observations.append(state)
                actions.append(action)
                state = 0.9 * state + mixing[action] + 0.1 * torch.randn_like(state)
                rewards.append(state[:, 0])
                dones.append((torch.rand(16) < 0.02).float())
        observations, actions = torch.stack(observations), torch.stack(actions)
        rewards, dones = torch.stack(rewards), torch.stack(dones)
        policy, values = model(observations)
        adv = estimate(rewards, values.detach(), dones)
        loss = -(policy.log_prob(actions) * adv).mean() + 0.5 * (adv + values.detach() - values).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    print("updates", len(times), "reward", rewards.mean().item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
