"""Autoencoder on hyperspectral pixels. The cube comes band by band: bands x pixels."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn


def read_cube(bands=200, side=500):
    rng = np.random.default_rng(5)
    cube = np.empty((bands, side * side), dtype=np.float32)
    base = rng.random(side * side, dtype=np.float32)
    for b in range(bands):
        cube[b] = base * np.float32(np.sin(b / 20)) + rng.random(dtype=np.float32)
    return torch.from_numpy(cube)


class PixelSampler:
    def __init__(self, cube, batch, by_pixel):
        self.batch = batch
        self.count = cube.shape[1]
        self.by_pixel = by_pixel
        self.cube = cube.t().contiguous() if by_pixel else cube

    def __iter__(self):
        while True:
            idx = torch.randint(0, self.count, (self.batch,))
            if self.by_pixel:
                yield self.cube[idx]
            else:
                yield self.cube[:, idx].t()


class AutoEncoder(nn.Module):
    def __init__(self, bands=200, code=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(bands, 96), nn.ELU(), nn.Linear(96, code))
        self.dec = nn.Sequential(nn.Linear(code, 96), nn.ELU(), nn.Linear(96, bands))

    def forward(self, x):
        return self.dec(self.enc(x))


def spectral_angle(a, b):
    return torch.acos(nn.functional.cosine_similarity(a, b, dim=1).clamp(-0.9999, 0.9999)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=2048)
    args = ap.parse_args()
    torch.manual_seed(0)
    sampler = PixelSampler(read_cube(), args.batch, by_pixel=args.better)
    model = AutoEncoder()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    times = []
    t0 = last = time.perf_counter()
    for x in sampler:
        y = model(x)
        loss = nn.functional.mse_loss(y, x) + 0.1 * spectral_angle(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - t0 > args.seconds:
            break
    print(f"loss {loss.item():.4f} in {len(times)} steps")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
