"""PPO for a vectorised toy robot arm with a diagonal Gaussian policy of fixed, decaying width."""

import argparse
import json
import time

import torch
import torch.nn as nn
from torch.distributions import Independent, MultivariateNormal, Normal

OBS, ACT, ENVS, HORIZON = 30, 12, 128, 16


class ArmEnv:
    """ENVS copies of a reaching task, stepped together as tensors."""

    def __init__(self):
        self.mix = torch.randn(ACT, OBS) * 0.2
        self.state = torch.randn(ENVS, OBS)

    def step(self, action):
        self.state = 0.9 * self.state + action.tanh() @ self.mix + 0.05 * torch.randn(ENVS, OBS)
        reward = -self.state[:, :6].square().sum(1)
        done = torch.rand(ENVS) < 0.01
        self.state = torch.where(done[:, None], torch.randn(ENVS, OBS), self.state)
        return self.state, reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, better, std=0.6):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(OBS, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, ACT), nn.Tanh()
        )
        self.critic = nn.Sequential(nn.Linear(OBS, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
        self.std, self.better = std, better

    def policy(self, obs):
        mean = self.actor(obs)
        if self.better:
            return Independent(Normal(mean, self.std), 1)
        var = torch.full_like(mean, self.std**2)
        return MultivariateNormal(mean, torch.diag_embed(var))

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


@torch.no_grad()
def rollout(env, net):
    obs, acts, logps, rews, dones = [], [], [], [], []
    state = env.state
    for _ in range(HORIZON):
        dist = net.policy(state)
        action = dist.sample()
        obs.append(state), acts.append(action), logps.append(dist.log_prob(action))
        state, r, d = env.step(action)
        rews.append(r), dones.append(d)
    obs = torch.stack(obs)
    values = net.value(torch.cat([obs, state[None]]))
    adv, last = torch.zeros(HORIZON, ENVS), torch.zeros(ENVS)
    for t in reversed(range(HORIZON)):
        alive = 1 - dones[t]
        delta = rews[t] + 0.99 * values[t + 1] * alive - values[t]
        adv[t] = last = delta + 0.99 * 0.95 * alive * last
    ret = adv + values[:-1]
    flat = (obs, torch.stack(acts), torch.stack(logps), adv, ret)
    return [x.flatten(0, 1) for x in flat]


def improve(net, opt, data, epochs=4, minibatches=2, clip=0.2):
    n = len(data[0])
    for _ in range(epochs):
        for idx in torch.randperm(n).chunk(minibatches):
            obs, act, old, adv, ret = (x[idx] for x in data)
            dist = net.policy(obs)
            ratio = (dist.log_prob(act) - old).exp()
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            gain = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
            loss = 0.5 * (net.value(obs) - ret).square().mean() - gain
            loss = loss - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
    return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    args = ap.parse_args()
    torch.manual_seed(0)
    env, net = ArmEnv(), ActorCritic(args.better)
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        data = rollout(env, net)
        loss = improve(net, opt, data)
        net.std = max(0.1, net.std * 0.9995)
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            print(f"update {len(times)} loss {loss.item():.3f} return {data[4].mean().item():.2f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
