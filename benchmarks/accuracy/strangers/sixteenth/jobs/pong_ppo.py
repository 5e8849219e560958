"""PPO on small game frames. Rollouts are kept as lists of frames and packed before the update."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Pong:
    """One paddle, one ball, 24x24 frames, four stacked."""

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.ball = np.array([12.0, self.rng.integers(2, 22)])
        self.vel = np.array([self.rng.choice([-1.0, 1.0]), self.rng.choice([-1.0, 1.0])])
        self.paddle = 12
        self.frames = np.zeros((4, 24, 24), dtype=np.float32)
        return self.frames

    def step(self, a):
        self.paddle = min(21, max(2, self.paddle + (a - 1)))
        self.ball += self.vel
        for k in (0, 1):
            if self.ball[k] <= 0 or self.ball[k] >= 23:
                self.vel[k] *= -1
        self.ball = self.ball.clip(0, 23)
        reward = 0.0
        if self.ball[0] >= 22:
            reward = 1.0 if abs(self.ball[1] - self.paddle) < 3 else -1.0
        frame = np.zeros((24, 24), dtype=np.float32)
        frame[int(self.ball[0]), int(self.ball[1])] = 1
        frame[22, self.paddle - 2 : self.paddle + 2] = 1
        self.frames = np.concatenate([self.frames[1:], frame[None]])
        return self.frames, reward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(4, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(800, 128), nn.ReLU())
        self.pi, self.v = nn.Linear(128, 3), nn.Linear(128, 1)

    def forward(self, x):
        h = self.fc(self.conv(x))
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Rollout:
    def __init__(self, better):
        self.obs, self.act, self.logp, self.val, self.rew = [], [], [], [], []
        self.pack = self.pack_b if better else self.pack_a

    def pack_a(self):
        return torch.tensor(self.obs)

    def pack_b(self):
        return torch.from_numpy(np.stack(self.obs))

    def advantages(self, gamma=0.98, lam=0.95):
        adv, run = [0.0] * len(self.rew), 0.0
        for t in reversed(range(len(self.rew))):
            after = self.val[t + 1] if t + 1 < len(self.val) else 0.0
            run = self.rew[t] + gamma * after - self.val[t] + gamma * lam * run
            adv[t] = run
        return torch.tensor(adv)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(3)
    env = Pong(np.random.default_rng(3))
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=5e-4)
    frame, times, begin = env.reset(), [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        roll = Rollout(args.better)
        for _ in range(128):
            with torch.no_grad():
                dist, v = net(torch.from_numpy(frame)[None])
                a = dist.sample()
            roll.obs.append(frame)
            roll.act.append(a.item())
            roll.logp.append(dist.log_prob(a).item())
            roll.val.append(v.item())
            frame, r = env.step(a.item())
            roll.rew.append(r)
        obs, act, logp, adv = roll.pack(), torch.tensor(roll.act), torch.tensor(roll.logp), roll.advantages()
        goal = adv + torch.tensor(roll.val)
        for _ in range(3):
            dist, v = net(obs)
            ratio = (dist.log_prob(act) - logp).exp()
            surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            loss = -surrogate + 0.5 * (v - goal).square().mean() - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        times.append(time.perf_counter() - t)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
