# Learns a pair potential for atomic clusters by force matching; the pair energy is compiled.
import argparse, json, time
import numpy as np
import torch
from torch import nn


class RadialPotential(nn.Module):
    """Sum over pairs of a learned combination of Gaussians, times a smooth cut-off."""

    def __init__(self, centers, cutoff=4.0):
        super().__init__()
        self.register_buffer("centers", centers)
        self.weight = nn.Parameter(torch.zeros(len(centers)))
        self.cutoff = cutoff

    def forward(self, pos):
        diff = pos[:, :, None] - pos[:, None]
        r = (diff.square().sum(-1) + 1e-6).sqrt()
        basis = torch.exp(-4.0 * (r[..., None] - self.centers).square())
        gate = 0.5 * (torch.cos(torch.pi * r / self.cutoff) + 1) * (r < self.cutoff)
        pair = (basis * self.weight).sum(-1) * gate
        return 0.5 * pair.sum((1, 2))


def gaussians(k, low=0.6, high=4.0):
    return np.linspace(low, high, k)


def forces(potential, pos):
    pos = pos.requires_grad_()
    energy = potential(pos)
    return -torch.autograd.grad(energy.sum(), pos, create_graph=False)[0], energy


def reference(pos):
    d = pos[:, :, None] - pos[:, None]
    r = (d.square().sum(-1) + 1e-6).sqrt()
    return (2 * torch.exp(-2 * (r - 1.2)) - torch.exp(-(r - 1.2))).clamp(-5, 5).tril(-1).sum((1, 2)) * 0.05


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--atoms", type=int, default=48)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(5)
    centers = torch.from_numpy(gaussians(32))
    if args.better:
        centers = centers.float()
    model = RadialPotential(centers)
    energy = torch.compile(model)
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(6)

    def clusters(n=24):
        return torch.rand(n, args.atoms, 3, generator=g) * 4

    energy(clusters()).sum().backward()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        pos = clusters()
        loss = (energy(pos) - reference(pos)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
