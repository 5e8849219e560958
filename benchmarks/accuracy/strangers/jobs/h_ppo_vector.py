"""PPO on stored rollouts: evaluate_actions, log_prob, several epochs over minibatches."""

import argparse
import json
import time

import torch
from torch import nn
from torch.distributions import Normal


class ActorCritic(nn.Module):
    def __init__(self, obs=64, actions=8, hidden=512):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mean, self.value = nn.Linear(hidden, actions), nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def evaluate_actions(self, obs, actions):
        h = self.trunk(obs)
        policy = Normal(self.mean(h), self.log_std.exp())
        return self.value(h).squeeze(1), policy.log_prob(actions).sum(1), policy.entropy().sum(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ActorCritic()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    obs, actions = torch.randn(40_000, 64), torch.randn(40_000, 8)
    with torch.no_grad():
        values, old_log_prob, _ = model.evaluate_actions(obs, actions)
    advantages = torch.randn(40_000)
    times, start = [], time.perf_counter()
    last = start
    while last - start < args.seconds:
        pick = torch.randint(0, 40_000, (1024,))
        value, log_prob, entropy = model.evaluate_actions(obs[pick], actions[pick])
        ratio = (log_prob - old_log_prob[pick]).exp()
        adv = advantages[pick]
        policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = policy_loss + 0.5 * (value - values[pick] - adv).pow(2).mean() - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("updates", len(times), "loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
