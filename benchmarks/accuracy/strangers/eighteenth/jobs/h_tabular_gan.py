"""GAN for synthetic tabular records (non-saturating loss, one G and one D update per step)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

COLUMNS, NOISE = 40, 64


def mlp(sizes, act):
    layers = []
    for i, o in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(i, o), act]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def real_table(n):
    mix = torch.randn(8, COLUMNS)
    return torch.tanh(torch.randn(n, 8) @ mix * 0.3) + 0.05 * torch.randn(n, COLUMNS)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    table = real_table(40_000)
    generator = mlp([NOISE, 384, 384, COLUMNS], nn.ReLU())
    critic = mlp([COLUMNS, 384, 384, 1], nn.LeakyReLU(0.2))
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
    opt_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
    batch = 512

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        real = table[torch.randint(0, len(table), (batch,))]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fake = generator(torch.randn(batch, NOISE)).float()
            scores = critic(torch.cat([real, fake.detach()])).float()
        on_real, on_fake = scores.chunk(2)
        d_loss = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()

        critic.requires_grad_(False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            verdict = critic(fake).float()
        g_loss = F.softplus(-verdict).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        critic.requires_grad_(True)

        if len(times) % 100 == 0:
            print(f"step {len(times)} d {d_loss.item():.3f} g {g_loss.item():.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
