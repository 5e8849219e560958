"""Short NVE trajectories with a learned many-body potential (weights are random here, the checkpoint is private)."""

import argparse
import json
import time

import torch
from torch import nn


class RadialBasis(nn.Module):
    def __init__(self, n=32, cutoff=5.0):
        super().__init__()
        self.register_buffer("mu", torch.linspace(0, cutoff, n))
        self.gamma = (n / cutoff) ** 2 / 2
        self.cutoff = cutoff

    def forward(self, r):
        env = 0.5 * (torch.cos(torch.pi * r / self.cutoff) + 1) * (r < self.cutoff)
        return torch.exp(-self.gamma * (r[..., None] - self.mu) ** 2) * env[..., None]


class Potential(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.rbf = RadialBasis()
        self.embed = nn.Linear(32, width)
        self.body = nn.Sequential(
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
        )
        self.energy = nn.Linear(width, 1)

    def forward(self, pos, pairs):
        i, j = pairs
        r = (pos[i] - pos[j]).norm(dim=-1)
        feats = self.rbf(r)
        atoms = torch.zeros(pos.size(0), 32).index_add(0, i, feats)
        return self.energy(self.body(self.embed(atoms))).sum()


class Calculator:
    def __init__(self, model, pairs, better):
        self.model, self.pairs, self.better = model, pairs, better

    def __call__(self, pos):
        pos = pos.detach().requires_grad_(True)
        e = self.model(pos, self.pairs)
        if self.better:
            return e.detach(), -torch.autograd.grad(e, pos)[0]
        e.backward()
        return e.detach(), -pos.grad


def lattice(k=6, a=2.2):
    g = torch.arange(k) * a
    pos = torch.cartesian_prod(g, g, g)
    return pos + 0.05 * torch.randn_like(pos)


def neighbours(pos, cutoff=4.0):
    d = torch.cdist(pos, pos)
    return ((d < cutoff) & (d > 0)).nonzero().t().contiguous()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(17)
    pos = lattice()
    vel = torch.randn_like(pos) * 0.01
    model = Potential().eval()
    calc = Calculator(model, neighbours(pos), args.better)
    dt = 0.01
    _, force = calc(pos)

    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t0 = time.perf_counter()
        vel = vel + 0.5 * dt * force
        pos = pos + dt * vel
        e, force = calc(pos)
        vel = vel + 0.5 * dt * force
        times.append(time.perf_counter() - t0)
        if len(times) % 100 == 0:
            kin = 0.5 * (vel**2).sum()
            print(f"frame {len(times)}  Epot {e.item():.4f}  Ekin {kin.item():.4f}")

    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
