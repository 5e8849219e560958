"""Fit a small neural force field: energies and forces of random clusters."""

import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn

ATOMS, CUTOFF, RBF = 14, 4.5, 24
PRECISION = {"double": torch.float64, "single": torch.float32}


def make_clusters(n, seed=0):
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(3.0)] * 3), -1).reshape(-1, 3)
    pos = np.stack([grid[rng.permutation(27)[:ATOMS]] * 1.5 for _ in range(n)])
    pos += rng.normal(0, 0.15, pos.shape)
    diff = pos[:, :, None] - pos[:, None]
    r2 = (diff**2).sum(-1) + np.eye(ATOMS)[None] * 1e6
    s6 = (1.3**2 / r2) ** 3
    energy = 2 * (s6**2 - s6).sum((1, 2)) / ATOMS
    force = (24 * (2 * s6**2 - s6) / r2)[..., None] * diff
    return pos, energy, force.sum(2) / ATOMS


class Potential(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.8, CUTOFF, RBF))
        self.filter = nn.Sequential(nn.Linear(RBF, width), nn.SiLU(), nn.Linear(width, width))
        self.node = nn.Linear(width, width)
        self.seed = nn.Parameter(torch.randn(width) * 0.1)
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("eye", torch.eye(ATOMS, dtype=torch.bool))

    def forward(self, pos):
        diff = pos.unsqueeze(2) - pos.unsqueeze(1)
        r = ((diff**2).sum(-1) + self.eye * 1.0).sqrt()
        smooth = 0.5 * (torch.cos(math.pi * (r / CUTOFF).clamp(max=1)) + 1)
        smooth = smooth.masked_fill(self.eye, 0.0).unsqueeze(-1)
        rbf = torch.exp(-8 * (r.unsqueeze(-1) - self.centres) ** 2)
        w = self.filter(rbf) * smooth
        h = self.seed.expand(pos.size(0), ATOMS, -1)
        for _ in range(2):
            h = h + torch.tanh((w * self.node(h).unsqueeze(1)).sum(2))
        return self.readout(h).sum((1, 2)) / ATOMS


def energy_and_forces(model, pos):
    pos = pos.requires_grad_(True)
    e = model(pos)
    (f,) = torch.autograd.grad(e.sum(), pos, create_graph=True)
    return e, -f


class Trainer:
    def __init__(self, precision, batch=16):
        dtype = PRECISION[precision]
        pos, e, f = make_clusters(1500)
        self.pos = torch.from_numpy(pos).to(dtype)
        self.energy = torch.from_numpy((e - e.mean()) / e.std()).to(dtype)
        self.force = torch.from_numpy(f / e.std()).to(dtype)
        self.model = Potential().to(dtype)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = batch

    def step(self):
        idx = torch.randint(0, len(self.pos), (self.batch,))
        e, f = energy_and_forces(self.model, self.pos[idx])
        loss = (e - self.energy[idx]).square().mean() + 10 * (f - self.force[idx]).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    trainer = Trainer(precision="single" if args.better else "double")
    laps = []
    t0 = prev = time.perf_counter()
    while prev - t0 < args.seconds:
        loss = trainer.step()
        if len(laps) % 50 == 0:
            print(f"{len(laps)} {loss.item():.5f}")
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    if args.times:
        np.savetxt(args.times, laps)


if __name__ == "__main__":
    main()
