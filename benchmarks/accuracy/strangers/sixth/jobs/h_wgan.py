"""Two-network adversarial training with one critic update per generator update."""

import argparse
import json
import time

import torch
from torch import nn
import torch.nn.functional as F


def mlp(*dims):
    layers = []
    for a, b in zip(dims, dims[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.gen = mlp(64, 512, 512, 256)
        self.critic = mlp(256, 512, 512, 1)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=1e-4, betas=(0.5, 0.9), fused=True)
        self.opt_c = torch.optim.Adam(self.critic.parameters(), lr=1e-4, betas=(0.5, 0.9), fused=True)
        self.data = torch.randn(10_000, 20) @ torch.randn(20, 256)
        self.size = 768

    def critic_step(self):
        real = self.data[torch.randint(0, len(self.data), (self.size,))]
        with torch.no_grad():
            fake = self.gen(torch.randn(self.size, 64))
        score = self.critic(torch.cat([real, fake]))
        loss = F.softplus(-score[: self.size]).mean() + F.softplus(score[self.size :]).mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        return loss.item()

    def generator_step(self):
        self.critic.requires_grad_(False)
        fake = self.gen(torch.randn(self.size, 64))
        loss = F.softplus(-self.critic(fake)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    tr = Trainer()
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        c = tr.critic_step()
        g = tr.generator_step()
        times.append(time.perf_counter() - t)
        if len(times) % 20 == 0:
            print(f"{len(times):6d} critic {c:.3f} generator {g:.3f}")
    with torch.inference_mode():
        fake = tr.gen(torch.randn(2000, 64))
    print("mean gap", (fake.mean(0) - tr.data.mean(0)).abs().mean().item())
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
