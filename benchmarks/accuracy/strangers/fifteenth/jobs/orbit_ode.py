"""Neural ODE fitted to three-body snippets."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn


def simulate(n, steps=40, dt=0.05, seed=0):
    rng = np.random.default_rng(seed)
    pos = rng.normal(size=(n, 3, 2))
    vel = 0.3 * rng.normal(size=(n, 3, 2))
    track = []
    for _ in range(steps):
        diff = pos[:, None] - pos[:, :, None]
        dist = np.sqrt((diff**2).sum(-1, keepdims=True) + 0.3)
        vel = vel + dt * (diff / dist**3).sum(2)
        pos = pos + dt * vel
        track.append(np.concatenate([pos, vel], -1).reshape(n, 12))
    return np.stack(track, 1)


class Field(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(12, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 12),
        )

    def forward(self, s):
        return self.net(s)


def rk4(f, s, dt):
    k1 = f(s)
    k2 = f(s + 0.5 * dt * k1)
    k3 = f(s + 0.5 * dt * k2)
    k4 = f(s + dt * k3)
    return s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def unroll(f, s, steps, dt=0.05):
    path = []
    for _ in range(steps):
        s = rk4(f, s, dt)
        path.append(s)
    return torch.stack(path, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    torch.manual_seed(0)
    tracks = torch.from_numpy(simulate(1024))
    field = Field()
    if args.better:
        tracks = tracks.float()
    else:
        field = field.double()
    opt = torch.optim.Adam(field.parameters(), lr=1e-3, fused=True)
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        rows = torch.randint(len(tracks), (args.batch,))
        first = int(torch.randint(0, 34, ()))
        piece = tracks[rows, first : first + 5]
        loss = (unroll(field, piece[:, 0], 4) - piece[:, 1:]).square().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(field.parameters(), 1.0)
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, mse {loss.item():.5f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
