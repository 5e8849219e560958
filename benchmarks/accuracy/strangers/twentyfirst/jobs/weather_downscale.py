"""Statistical downscaling of 2 m temperature with a small Fourier neural operator."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

GRID, FIELDS = 48, 5


def reanalysis(days, seed=0):
    """Coarse predictors and the fine target as arrays, the way xarray hands them over."""
    rng = np.random.default_rng(seed)
    k = np.fft.fftfreq(GRID) * GRID
    energy = 1 / (1 + k[:, None] ** 2 + k[None] ** 2)
    noise = rng.normal(size=(days, FIELDS, GRID, GRID))
    coarse = np.fft.ifft2(np.fft.fft2(noise) * energy).real * 20
    relief = np.sin(np.linspace(0, 9, GRID))[:, None] * np.cos(np.linspace(0, 7, GRID))[None]
    fine = coarse[:, :1] - 0.6 * relief + 0.1 * coarse[:, 1:2] * relief
    return coarse, fine


def standardise(x):
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    std = x.std(axis=(0, 2, 3), keepdims=True)
    return (x - mean) / std


class SpectralConv(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width)

    def forward(self, x):
        m = self.modes
        weight = torch.view_as_complex(self.weight)
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], weight[0])
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], weight[1])
        return torch.fft.irfft2(out, s=x.shape[-2:])


class Downscaler(nn.Module):
    def __init__(self, width=32, depth=3, modes=10):
        super().__init__()
        self.lift = nn.Linear(FIELDS + 2, width)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(depth))
        self.local = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.project = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, 1))
        axis = torch.linspace(-1, 1, GRID)
        self.register_buffer("coords", torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1))

    def forward(self, x):
        coords = self.coords.expand(len(x), -1, -1, -1)
        x = self.lift(torch.cat([x.movedim(1, -1), coords], -1))
        for spectral, local in zip(self.spectral, self.local):
            x = F.gelu(spectral(x.movedim(-1, 1)).movedim(1, -1) + local(x))
        return self.project(x).movedim(-1, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    coarse, fine = reanalysis(days=240)
    inputs = torch.from_numpy(standardise(coarse))
    target = torch.from_numpy(standardise(fine))
    if args.better:
        inputs, target = inputs.float(), target.float()
    model = Downscaler().to(inputs.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 500, 0.7)

    times, step = [], 0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        days = torch.randint(0, len(inputs), (6,))
        prediction = model(inputs[days])
        error = F.mse_loss(prediction, target[days])
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        schedule.step()
        step += 1
        times.append(time.perf_counter() - began)
        if step % 25 == 0:
            print(f"step {step}: rmse {error.sqrt().item():.4f} sd")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
