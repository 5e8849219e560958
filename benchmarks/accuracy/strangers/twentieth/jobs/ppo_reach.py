"""PPO for a simulated 7-joint arm that has to reach a goal: 16 arms, 24 control steps per iteration."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn

JOINTS, ARMS, ROLLOUT, EPOCHS, MINIBATCH = 7, 16, 24, 2, 128
OBS = 4 * JOINTS + 6


class ReachArms:
    """All arms at once; an arm that has used up its clock starts anew."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.links = np.linspace(0.4, 0.1, JOINTS)
        self.angle, self.speed = np.zeros((2, ARMS, JOINTS))
        self.goal = np.zeros((ARMS, 3))
        self.clock = np.zeros(ARMS, dtype=np.int64)
        self.reset(np.ones(ARMS, dtype=bool))
        self.clock[:] = self.rng.integers(0, 120, ARMS)

    def reset(self, which):
        count = which.sum()
        self.angle[which] = self.rng.uniform(-1, 1, (count, JOINTS))
        self.speed[which] = 0
        self.goal[which] = self.rng.uniform(-1, 1, (count, 3))
        self.clock[which] = 0

    def offset(self):
        total = self.angle.cumsum(1)
        tip = np.stack([np.cos(total) @ self.links, np.sin(total) @ self.links, 0.1 * self.angle[:, 0]], 1)
        return tip - self.goal

    def observe(self):
        parts = (np.cos(self.angle), np.sin(self.angle), self.angle, self.speed, self.goal, self.offset())
        return np.concatenate(parts, 1).astype(np.float32)

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.1 * action
        self.angle = self.angle + 0.05 * self.speed
        self.clock += 1
        reward = -np.linalg.norm(self.offset(), axis=1) - 0.01 * np.square(action).sum(1)
        done = self.clock >= 120
        if done.any():
            self.reset(done)
        return self.observe(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(OBS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, JOINTS)
        )
        self.critic = nn.Sequential(
            nn.Linear(OBS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        self.log_std = nn.Parameter(torch.full((JOINTS,), -0.5))

    def log_prob(self, mean, action):
        z = (action - mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - 0.919).sum(-1)

    def evaluate(self, obs, action):
        return self.log_prob(self.actor(obs), action), self.critic(obs).squeeze(-1)

    @torch.no_grad()
    def act(self, obs):
        mean = self.actor(obs)
        action = mean + self.log_std.exp() * torch.randn_like(mean)
        return action, self.log_prob(mean, action), self.critic(obs).squeeze(-1)


class Collector:
    def __init__(self, model, seed, better):
        self.model, self.better = model, better
        self.arms = ReachArms(seed)
        self.obs = torch.from_numpy(self.arms.observe())

    def decide(self):
        if self.better:
            return self.model.act(self.obs)
        decisions = [self.model.act(obs) for obs in self.obs]
        return tuple(torch.stack(column) for column in zip(*decisions))

    def rollout(self):
        obs = torch.empty(ROLLOUT, ARMS, OBS)
        action = torch.empty(ROLLOUT, ARMS, JOINTS)
        log_prob, value, reward, done = torch.empty(4, ROLLOUT, ARMS).unbind(0)
        for t in range(ROLLOUT):
            obs[t] = self.obs
            action[t], log_prob[t], value[t] = self.decide()
            observed, rewards, finished = self.arms.step(action[t].numpy())
            self.obs = torch.from_numpy(observed)
            reward[t], done[t] = torch.from_numpy(rewards), torch.from_numpy(finished)
        with torch.no_grad():
            last = self.model.critic(self.obs).squeeze(-1)
        return obs, action, log_prob, value, reward, done, last


def advantages(value, reward, done, last, gamma=0.98, lam=0.95):
    result, running = torch.empty_like(value), torch.zeros(ARMS)
    for t in reversed(range(ROLLOUT)):
        delta = reward[t] + gamma * last * (1 - done[t]) - value[t]
        running = delta + gamma * lam * (1 - done[t]) * running
        result[t], last = running, value[t]
    return result


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    collector = Collector(model, seed=2, better=args.better)
    times = []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        obs, action, log_prob, value, reward, done, tail = collector.rollout()
        advantage = advantages(value, reward, done, tail)
        target = (advantage + value).flatten()
        advantage = ((advantage - advantage.mean()) / (advantage.std() + 1e-6)).flatten()
        obs, action, log_prob = obs.flatten(0, 1), action.flatten(0, 1), log_prob.flatten()
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(obs)).split(MINIBATCH):
                new_log_prob, predicted = model.evaluate(obs[rows], action[rows])
                ratio = (new_log_prob - log_prob[rows]).exp()
                gain = torch.min(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows])
                loss = -gain.mean() + 0.5 * (predicted - target[rows]).square().mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 20 == 0:
            print(f"iteration {len(times)} mean reward {reward.mean().item():.3f} loss {loss.item():.3f}", flush=True)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
