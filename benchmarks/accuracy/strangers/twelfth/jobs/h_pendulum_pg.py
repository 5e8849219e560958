"""Policy gradient from pendulum pictures; the simulator is plain Python."""

import argparse
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ENVS, HORIZON, RES, TORQUES = 8, 6, 24, 3


class Pendulum:
    def __init__(self, rng):
        self.rng = rng
        self.restart()

    def restart(self):
        self.angle, self.speed, self.age = self.rng.uniform(-1, 1), 0.0, 0

    def advance(self, action):
        torque = (action - 1) * 2.0
        self.speed += 0.05 * (9.8 * math.sin(self.angle) + torque)
        self.angle += 0.05 * self.speed
        self.age += 1
        reward = math.cos(self.angle) - 0.01 * self.speed**2
        done = self.age >= 100 or abs(self.speed) > 12
        if done:
            self.restart()
        return reward, done


class Gym:
    """Steps all pendulums one after another and draws them together."""

    def __init__(self, n, seed=0):
        rng = random.Random(seed)
        self.envs = [Pendulum(rng) for _ in range(n)]
        ax = torch.linspace(-1, 1, RES)
        self.yy, self.xx = torch.meshgrid(ax, ax, indexing="ij")

    def pictures(self):
        a = torch.tensor([[e.angle, e.speed] for e in self.envs])
        px, py = a[:, 0].sin()[:, None, None] * 0.8, -a[:, 0].cos()[:, None, None] * 0.8
        blob = torch.exp(-20 * ((self.xx - px) ** 2 + (self.yy - py) ** 2))
        speed = (a[:, 1] / 10)[:, None, None].expand_as(blob)
        return torch.stack([blob, speed], dim=1)

    def wait_for_all(self, actions):
        return zip(*[env.advance(a) for env, a in zip(self.envs, actions)])


class ActorCritic(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, ch, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * ch, 2 * ch, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * ch * 36, 256),
            nn.ReLU(),
        )
        self.pi, self.v = nn.Linear(256, TORQUES), nn.Linear(256, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


def collect(gym, net):
    obs, acts, rews, ends = [], [], [], []
    with torch.no_grad():
        for _ in range(HORIZON):
            x = gym.pictures()
            a = torch.distributions.Categorical(logits=net(x)[0]).sample()
            r, d = gym.wait_for_all(a.tolist())
            obs.append(x), acts.append(a)
            rews.append(torch.tensor(r)), ends.append(torch.tensor(d, dtype=torch.float32))
        tail = net(gym.pictures())[1]
    returns = []
    for r, d in zip(reversed(rews), reversed(ends)):
        tail = r + 0.98 * tail * (1 - d)
        returns.append(tail)
    return torch.cat(obs), torch.cat(acts), torch.cat(returns[::-1]), torch.stack(rews).mean()


def improve(net, opt, obs, acts, returns):
    logits, value = net(obs)
    adv = returns - value.detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    logp = logits.log_softmax(-1)
    pg = -(adv * logp.gather(1, acts[:, None]).squeeze(1)).mean()
    entropy = -(logp.exp() * logp).sum(1).mean()
    loss = pg + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    gym, net, laps = Gym(ENVS), ActorCritic(), []
    opt = torch.optim.Adam(net.parameters(), lr=7e-4)
    t0 = prev = time.perf_counter()
    while prev - t0 < args.seconds:
        obs, acts, returns, mean_reward = collect(gym, net)
        improve(net, opt, obs, acts, returns)
        if len(laps) % 50 == 0:
            print(f"update {len(laps)} reward {mean_reward.item():.3f}")
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    if args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(str(v) for v in laps))
