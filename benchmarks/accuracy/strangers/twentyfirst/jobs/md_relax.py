"""Molecular dynamics with a trained neural potential (SchNet style), one cluster of atoms.

Velocity Verlet with a Langevin thermostat; forces are the negative gradient of the energy.
"""

import argparse
import json
import time

import torch
from torch import nn

ATOMS, FILTERS, RBF = 160, 128, 32
CUTOFF = 5.0


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(RBF, FILTERS), nn.Softplus(), nn.Linear(FILTERS, FILTERS))
        self.inp = nn.Linear(FILTERS, FILTERS, bias=False)
        self.out = nn.Sequential(nn.Linear(FILTERS, FILTERS), nn.Softplus(), nn.Linear(FILTERS, FILTERS))

    def forward(self, x, i, j, rbf, envelope):
        w = self.filter(rbf) * envelope
        message = self.inp(x)[j] * w
        total = torch.zeros_like(x).index_add(0, i, message)
        return x + self.out(total)


class Potential(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.embed = nn.Embedding(20, FILTERS)
        self.layers = nn.ModuleList(Interaction() for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(FILTERS, 64), nn.Softplus(), nn.Linear(64, 1))
        self.register_buffer("centres", torch.linspace(0, CUTOFF, RBF))

    def forward(self, species, pos, i, j):
        d = (pos[i] - pos[j]).norm(dim=1)
        rbf = torch.exp(-8.0 * (d[:, None] - self.centres) ** 2)
        envelope = (0.5 * (torch.cos(d * torch.pi / CUTOFF) + 1) * (d < CUTOFF))[:, None]
        x = self.embed(species)
        for layer in self.layers:
            x = layer(x, i, j, rbf, envelope)
        return self.head(x).sum()


class Neighbours:
    """Pair list with a skin; rebuilt when an atom has moved half the skin."""

    def __init__(self, skin=0.6):
        self.skin, self.at = skin, None

    def pairs(self, pos):
        if self.at is None or (pos - self.at).norm(dim=1).max() > self.skin / 2:
            near = torch.cdist(pos, pos) < CUTOFF + self.skin
            near.fill_diagonal_(False)
            self.i, self.j = near.nonzero(as_tuple=True)
            self.at = pos.clone()
        return self.i, self.j


class Simulation:
    def __init__(self, potential, species, pos, dt=0.002, temperature=0.1, friction=0.5):
        self.potential, self.species = potential, species
        self.pos, self.vel = pos, torch.zeros_like(pos)
        self.dt, self.temperature, self.friction = dt, temperature, friction
        self.neighbours = Neighbours()
        self.energy, self.force = self.evaluate()

    def evaluate(self):
        i, j = self.neighbours.pairs(self.pos)
        pos = self.pos.clone().requires_grad_(True)
        energy = self.potential(self.species, pos, i, j)
        energy.backward()
        return energy.detach(), -pos.grad

    def step(self):
        self.vel += 0.5 * self.dt * self.force
        self.pos += self.dt * self.vel
        self.energy, self.force = self.evaluate()
        self.vel += 0.5 * self.dt * self.force
        c = 1 - self.friction * self.dt
        self.vel = c * self.vel + (self.temperature * (1 - c * c)) ** 0.5 * torch.randn_like(self.vel)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    potential = Potential().eval()
    if args.better:
        potential.requires_grad_(False)
    grid = torch.cartesian_prod(*[torch.arange(6.0)] * 3)[:ATOMS] * 2.1
    sim = Simulation(potential, torch.randint(1, 20, (ATOMS,)), grid + 0.1 * torch.randn_like(grid))

    times, step = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        sim.step()
        times.append(time.perf_counter() - t0)
        step += 1
        if step % 50 == 0:
            print(f"step {step}: energy {sim.energy.item():.4f}, kinetic {0.5 * sim.vel.square().sum().item():.4f}")

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms, {len(sim.neighbours.i)} pairs")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
