"""Operator network for the heat equation: initial profile and query point -> temperature."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn

SENSORS = 64


def solve(profiles, steps=200, alpha=0.2, keep=40):
    """Explicit finite differences with fixed ends; returns `keep` snapshots per profile."""
    u = profiles.copy()
    frames = []
    for i in range(steps):
        u[:, 1:-1] += alpha * (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2])
        if i % (steps // keep) == 0:
            frames.append(u.copy())
    return np.stack(frames, 1)


def simulations(n=800, seed=0):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 1, SENSORS)
    modes = np.sin(np.pi * np.arange(1, 9)[:, None] * x)
    coef = rng.normal(size=(n, 8)) / np.arange(1, 9)
    profiles = coef @ modes
    frames = solve(profiles)
    t = np.linspace(0, 1, frames.shape[1])
    points = np.stack(np.meshgrid(t, x, indexing="ij"), -1).reshape(-1, 2)
    return profiles, points, frames.reshape(n, -1)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(x)))


def subnet(inputs, width, depth, outputs):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), *(Residual(width) for _ in range(depth)), nn.Linear(width, outputs)
    )


class HeatOperator(nn.Module):
    def __init__(self, width=256, rank=96):
        super().__init__()
        self.branch = subnet(SENSORS, width, 2, rank)
        self.trunk = subnet(2, width, 3, rank)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, profile, point):
        return self.branch(profile) @ self.trunk(point).T + self.bias


class Problem:
    def __init__(self, profiles, points, values, holdout=50):
        self.profiles = torch.from_numpy(profiles)
        self.points = torch.from_numpy(points)
        self.values = torch.from_numpy(values)
        self.train = len(profiles) - holdout

    def draw(self, n_profiles, n_points, g):
        i = torch.randint(self.train, (n_profiles,), generator=g)
        j = torch.randint(len(self.points), (n_points,), generator=g)
        return self.profiles[i], self.points[j], self.values[i[:, None], j]

    @torch.inference_mode()
    def relative_error(self, model):
        truth = self.values[self.train :]
        guess = model(self.profiles[self.train :], self.points)
        return ((guess - truth).norm() / truth.norm()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--profiles", type=int, default=128)
    ap.add_argument("--points", type=int, default=768)
    args = ap.parse_args()
    torch.manual_seed(0)

    data = simulations()
    if args.better:
        data = [d.astype(np.float32) for d in data]
    problem = Problem(*data)
    model = HeatOperator().to(problem.profiles.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4000)
    g = torch.Generator().manual_seed(1)

    seconds, step = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        profile, point, value = problem.draw(args.profiles, args.points, g)
        loss = nn.functional.mse_loss(model(profile, point), value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        seconds.append(time.perf_counter() - t0)
        step += 1
        if step % 200 == 0:
            print(f"step {step} mse {loss.item():.3e} held-out {problem.relative_error(model):.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(seconds, f)


if __name__ == "__main__":
    main()
