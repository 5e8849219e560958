"""Batched REINFORCE with baseline on a contextual control task."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self, obs=32, actions=10, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.logits = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return self.logits(h), self.value(h).squeeze(-1)


class ControlBatch:
    """256 environments stepped together as one tensor."""

    def __init__(self, n=256, obs=32, actions=10):
        g = torch.Generator().manual_seed(1)
        self.effect = torch.randn(actions, obs, generator=g) * 0.2
        self.state = torch.randn(n, obs, generator=g)

    def step(self, action):
        self.state = 0.9 * self.state + self.effect[action]
        return self.state, -self.state[:, :4].abs().mean(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    env, policy = ControlBatch(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-4, fused=True)
    horizon, gamma = 8, 0.97

    times = []
    obs = env.state
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        states, actions, rewards = [], [], []
        with torch.no_grad():
            for _ in range(horizon):
                logits, _ = policy(obs)
                action = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
                states.append(obs)
                actions.append(action)
                obs, reward = env.step(action)
                rewards.append(reward)
            _, running = policy(obs)
            returns = [None] * horizon
            for t in reversed(range(horizon)):
                running = rewards[t] + gamma * running
                returns[t] = running
        s, a, g = torch.cat(states), torch.cat(actions), torch.cat(returns)
        logits, value = policy(s)
        advantage = g - value.detach()
        logp = F.log_softmax(logits, dim=-1)
        picked = logp.gather(1, a[:, None]).squeeze(1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(picked * advantage).mean() + 0.5 * F.mse_loss(value, g) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} updates, reward {torch.stack(rewards).mean().item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
