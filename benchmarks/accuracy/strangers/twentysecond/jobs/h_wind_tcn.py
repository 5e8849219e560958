"""Wind-park power forecast with a dilated temporal convolution network."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

PAST, AHEAD, CHANNELS = 144, 12, 5


def park(turbines=20, steps=12000, seed=0):
    rng = np.random.default_rng(seed)
    wind = 8 + 3 * np.sin(np.arange(steps) / 70) + 0.08 * rng.normal(size=(turbines, steps)).cumsum(1)
    wind = np.clip(wind, 0, 25)
    power = np.clip((wind / 12) ** 3, 0, 1) + 0.02 * rng.normal(size=wind.shape)
    direction = 0.02 * rng.normal(size=wind.shape).cumsum(1)
    clock = np.broadcast_to(np.arange(steps) % 144 / 144, wind.shape)
    series = np.stack([power, wind / 12, np.sin(direction), np.cos(direction), clock], 1)
    return torch.from_numpy(series.astype(np.float32))


class Causal(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, 2 * width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        y = F.glu(self.conv(F.pad(x, (self.pad, 0))), dim=1)
        return x + self.mix(y)


class WindNet(nn.Module):
    def __init__(self, width=48, levels=5):
        super().__init__()
        self.inp = nn.Conv1d(CHANNELS, width, 1)
        self.levels = nn.Sequential(*(Causal(width, 2**i) for i in range(levels)))
        self.out = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 2 * AHEAD))

    def forward(self, x):
        mean, log_scale = self.out(self.levels(self.inp(x))[:, :, -1]).chunk(2, 1)
        return mean, log_scale.clamp(-5, 3)


class Draws:
    def __init__(self, series, batch, seed):
        self.windows = series.unfold(2, PAST + AHEAD, 1)
        self.batch = batch
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        n, _, t, _ = self.windows.shape
        while True:
            i = torch.randint(n, (self.batch,), generator=self.g)
            j = torch.randint(t, (self.batch,), generator=self.g)
            w = self.windows[i, :, j]
            yield w[..., :PAST].contiguous(), w[:, 0, PAST:]


def nll(output, truth):
    mean, log_scale = output
    return (log_scale + (truth - mean).abs() * torch.exp(-log_scale)).mean()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    torch.manual_seed(0)

    series = park()
    held = next(iter(Draws(series[:, :, 10000:], 256, 5)))
    model = WindNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 200)
    digits = 5 if args.better else 4

    times = []
    begin = last = time.perf_counter()
    for step, (x, y) in enumerate(Draws(series[:, :, :10000], args.batch, 0), 1):
        loss = nll(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 300 == 0:
            with torch.inference_mode():
                print(f"step {step} held-out nll {nll(model(held[0]), held[1]).item():.{digits}f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
