"""PPO on a batch of vectorised pendulum swing-up tasks."""

import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn

ENVS, ROLLOUT, EPOCHS, MINIBATCHES = 64, 16, 4, 4


class Pendulums:
    """ENVS pendulums stepped together in numpy."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.theta = self.rng.uniform(-math.pi, math.pi, ENVS)
        self.omega = self.rng.uniform(-1, 1, ENVS)
        self.age = self.rng.integers(0, 200, ENVS)

    def observe(self):
        return np.stack([np.cos(self.theta), np.sin(self.theta), self.omega / 8], 1).astype(np.float32)

    def step(self, torque):
        u = np.clip(torque, -2, 2)
        angle = (self.theta + math.pi) % (2 * math.pi) - math.pi
        reward = -(angle**2 + 0.1 * self.omega**2 + 0.001 * u**2)
        self.omega = np.clip(self.omega + (15 * np.sin(self.theta) + 3 * u) * 0.05, -8, 8)
        self.theta = self.theta + self.omega * 0.05
        self.age += 1
        done = self.age >= 200
        if done.any():
            n = int(done.sum())
            self.theta[done] = self.rng.uniform(-math.pi, math.pi, n)
            self.omega[done] = self.rng.uniform(-1, 1, n)
            self.age[done] = 0
        return self.observe(), reward.astype(np.float32), done


def mlp(n_out):
    return nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, n_out))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = mlp(1), mlp(1)
        self.log_std = nn.Parameter(torch.zeros(()))

    def log_prob(self, mean, action):
        return -0.5 * ((action - mean) / self.log_std.exp()) ** 2 - self.log_std - 0.5 * math.log(2 * math.pi)


class Rollout:
    def __init__(self):
        self.obs = torch.empty(ROLLOUT, ENVS, 3)
        self.action, self.logp, self.value, self.reward, self.live = (torch.empty(ROLLOUT, ENVS) for _ in range(5))

    @torch.no_grad()
    def collect(self, env, agent, obs):
        for t in range(ROLLOUT):
            self.obs[t] = torch.from_numpy(obs)
            mean = agent.actor(self.obs[t])[:, 0]
            action = mean + agent.log_std.exp() * torch.randn(ENVS)
            self.action[t] = action
            self.logp[t] = agent.log_prob(mean, action)
            obs, reward, done = env.step(action.numpy())
            self.reward[t] = torch.from_numpy(reward)
            self.live[t] = torch.from_numpy(~done)
        values = agent.critic(torch.cat([self.obs, torch.from_numpy(obs)[None]]))[..., 0]
        self.value = values[:-1]
        return obs, values[-1]

    def advantages(self, last_value, gamma=0.98, lam=0.95):
        adv = torch.empty_like(self.value)
        running, nxt = torch.zeros(ENVS), last_value
        for t in reversed(range(ROLLOUT)):
            delta = self.reward[t] + gamma * nxt * self.live[t] - self.value[t]
            running = delta + gamma * lam * self.live[t] * running
            adv[t], nxt = running, self.value[t]
        return adv


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    env, agent, rollout = Pendulums(0), ActorCritic(), Rollout()
    opt = torch.optim.Adam(agent.parameters(), lr=3e-4, fused=True)
    obs = env.observe()

    times = []
    start = last = time.perf_counter()
    while last - start < args.seconds:
        obs, last_value = rollout.collect(env, agent, obs)
        adv = rollout.advantages(last_value)
        flat = [x.flatten(0, 1) for x in (rollout.obs, rollout.action, rollout.logp, adv, adv + rollout.value)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(ROLLOUT * ENVS).chunk(MINIBATCHES):
                o, a, logp_old, ad, ret = (x[rows] for x in flat)
                ad = (ad - ad.mean()) / (ad.std() + 1e-6)
                ratio = (agent.log_prob(agent.actor(o)[:, 0], a) - logp_old).exp()
                policy_loss = -torch.minimum(ratio * ad, ratio.clamp(0.8, 1.2) * ad).mean()
                value_loss = (agent.critic(o)[:, 0] - ret).square().mean()
                loss = policy_loss + 0.5 * value_loss - 0.001 * agent.log_std
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5, foreach=True)
                opt.step()
        if len(times) % 10 == 0:
            print(f"update {len(times)} reward {rollout.reward.mean():.3f} std {agent.log_std.exp():.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
