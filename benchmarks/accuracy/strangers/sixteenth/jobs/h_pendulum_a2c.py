"""A2C on a vectorised pendulum."""

import argparse, json, math, time
import torch
from torch import nn


class Pendulums:
    def __init__(self, n, g):
        self.g = g
        self.th = (torch.rand(n, generator=g) * 2 - 1) * math.pi
        self.om = torch.zeros(n)

    def observe(self):
        return torch.stack([self.th.cos(), self.th.sin(), self.om / 8], 1)

    def step(self, u):
        self.om = (self.om + 0.05 * (15 * self.th.sin() + 3 * u)).clamp(-8, 8)
        self.th = torch.remainder(self.th + 0.05 * self.om + math.pi, 2 * math.pi) - math.pi
        return -(self.th.square() + 0.1 * self.om.square() + 0.001 * u.square())


class Agent(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 2)
        self.log_std = nn.Parameter(torch.zeros(()))

    def forward(self, s):
        mean, value = self.head(self.body(s)).unbind(-1)
        return 2 * torch.tanh(mean), value


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    env = Pendulums(512, torch.Generator().manual_seed(0))
    agent = Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=7e-4, fused=True)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        logps, values, rewards = [], [], []
        for _ in range(8):
            mean, value = agent(env.observe())
            noise = torch.randn_like(mean)
            action = (mean + agent.log_std.exp() * noise).detach()
            logps.append(-0.5 * ((action - mean) / agent.log_std.exp()).square() - agent.log_std)
            values.append(value)
            rewards.append(env.step(action))
        with torch.no_grad():
            run, targets = agent(env.observe())[1], []
            for r in reversed(rewards):
                run = 0.1 * r + 0.97 * run
                targets.append(run)
        target = torch.stack(targets[::-1])
        adv = target - torch.stack(values)
        loss = -(torch.stack(logps) * adv.detach()).mean() + 0.5 * adv.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} updates, reward {rewards[-1].mean().item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
