"""WGAN-GP on a ring of Gaussians embedded in 64 dimensions. Five critic updates per generator update."""

import argparse
import json
import math
import time

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
ap.add_argument("--critic-steps", type=int, default=5)
ap.add_argument("--batch", type=int, default=256)
args = ap.parse_args()
torch.manual_seed(0)

LIFT = torch.linalg.qr(torch.randn(64, 64)).Q[:2]


def real(n):
    k = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    xy = 2 * torch.stack([k.cos(), k.sin()], 1) + 0.05 * torch.randn(n, 2)
    return xy @ LIFT


def mlp(i, o, h=256):
    return nn.Sequential(
        nn.Linear(i, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, o)
    )


def penalty(critic, x, y):
    mix = torch.rand(len(x), 1)
    z = (mix * x + (1 - mix) * y).requires_grad_(True)
    g = torch.autograd.grad(critic(z).sum(), z, create_graph=True)[0]
    return (g.norm(dim=1) - 1).square().mean()


gen, critic = mlp(16, 64), mlp(64, 1)
g_opt = torch.optim.Adam(gen.parameters(), lr=1e-4, betas=(0.0, 0.9), fused=True)
c_opt = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9), fused=True)

times = []
begin = time.perf_counter()
while time.perf_counter() - begin < args.seconds:
    t = time.perf_counter()
    for _ in range(args.critic_steps):
        x = real(args.batch)
        with torch.no_grad():
            y = gen(torch.randn(args.batch, 16))
        c_loss = critic(y).mean() - critic(x).mean() + 10 * penalty(critic, x, y)
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()

    for p in critic.parameters():
        p.requires_grad_(False)
    g_loss = -critic(gen(torch.randn(args.batch, 16))).mean()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    for p in critic.parameters():
        p.requires_grad_(True)
    times.append(time.perf_counter() - t)

print(f"{len(times)} rounds, critic {c_loss.item():.3f}, generator {g_loss.item():.3f}")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
