import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class LoadSeries(Dataset):
    """Hourly electricity load of several meters -> (history, next day)."""

    def __init__(self, frame, history=168, horizon=24, prepared=False):
        self.frame = frame
        self.history, self.horizon = history, horizon
        self.hours = np.arange(len(frame)) % 24
        self.table = self.scaled() if prepared else None

    def scaled(self):
        values = self.frame.astype(np.float32)
        mean, std = values.mean(axis=0), values.std(axis=0)
        clock = np.stack([np.sin(self.hours / 24 * 2 * np.pi), np.cos(self.hours / 24 * 2 * np.pi)], 1)
        return np.concatenate([(values - mean) / (std + 1e-6), clock.astype(np.float32)], 1)

    def __len__(self):
        return len(self.frame) - self.history - self.horizon

    def __getitem__(self, i):
        data = self.scaled() if self.table is None else self.table
        j = i + self.history
        return data[i:j], data[j : j + self.horizon, :8]


class Forecaster(nn.Module):
    def __init__(self, meters=8, horizon=24):
        super().__init__()
        self.meters, self.horizon = meters, horizon
        self.gru = nn.GRU(meters + 2, 64, batch_first=True)
        self.out = nn.Linear(64, meters * horizon)

    def forward(self, x):
        _, h = self.gru(x)
        return self.out(h[-1]).view(-1, self.horizon, self.meters)


def synth(hours=6000, meters=8):
    rng = np.random.default_rng(4)
    t = np.arange(hours)[:, None]
    return 300 + 80 * np.sin(t / 24 * 2 * np.pi + rng.random(meters)) + rng.normal(0, 10, (hours, meters))


p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=20)
p.add_argument("--better", action="store_true")
p.add_argument("--times")
args = p.parse_args()

torch.manual_seed(0)
series = LoadSeries(synth(), prepared=args.better)
loader = DataLoader(series, batch_size=32, sampler=RandomSampler(series, replacement=True, num_samples=10**6))
model = Forecaster()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
times = []
t0 = prev = time.perf_counter()
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    t = time.perf_counter()
    times.append(t - prev)
    prev = t
    if t - t0 > args.seconds:
        break
print(f"mse {loss.item():.4f}")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
