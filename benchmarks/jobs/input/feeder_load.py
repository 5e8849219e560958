"""Day-ahead load forecasting for distribution feeders with a dilated convolution network."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def simulate_feeders(n, hours, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    day = np.sin(2 * np.pi * t / 24)
    week = np.sin(2 * np.pi * t / 168)
    out = np.empty((n, hours), dtype=np.float32)
    for i in range(n):
        a, b, c = rng.uniform(0.5, 2.0, 3)
        spikes = (rng.random(hours) < 0.01) * rng.exponential(5.0, hours)
        out[i] = 40 * c + 10 * a * day + 4 * b * week + rng.normal(0, 1.5, hours) + spikes
    return out


class RobustScaler:
    """Median / inter-quartile scaling, so that outages and spikes do not dominate."""

    def __init__(self, centre, spread):
        self.centre, self.spread = centre, spread

    @classmethod
    def fit(cls, values):
        low, mid, high = np.percentile(values, (25, 50, 75))
        return cls(np.float32(mid), np.float32(max(high - low, 1e-3)))

    def __call__(self, values):
        return (values - self.centre) / self.spread


class FeederWindows(Dataset):
    def __init__(self, loads, past, ahead, opt, seed=0):
        self.loads, self.past, self.ahead = loads, past, ahead
        rng = np.random.default_rng(seed)
        n, hours = loads.shape
        self.where = np.stack([rng.integers(0, n, 6000), rng.integers(0, hours - past - ahead, 6000)], 1)
        self.scalers = {i: RobustScaler.fit(row) for i, row in enumerate(loads)} if opt.better else {}

    def __len__(self):
        return len(self.where)

    def scaler(self, feeder):
        known = self.scalers.get(feeder)
        return known or RobustScaler.fit(self.loads[feeder])

    def __getitem__(self, i):
        feeder, start = self.where[i].tolist()
        scale = self.scaler(feeder)
        cut = start + self.past
        window = scale(self.loads[feeder, start : cut + self.ahead])
        hour = np.arange(start, cut) % 24
        x = np.stack([window[: self.past], np.sin(hour / 24 * 2 * np.pi), np.cos(hour / 24 * 2 * np.pi)])
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(window[self.past :])


class GatedConv(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, 2 * width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.pad, 0))).chunk(2, 1)
        return x + self.mix(torch.tanh(a) * torch.sigmoid(b))


class FeederNet(nn.Module):
    def __init__(self, ahead, width=32):
        super().__init__()
        self.stem = nn.Conv1d(3, width, 1)
        self.body = nn.Sequential(*(GatedConv(width, 2**i) for i in range(4)))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 3 * ahead))
        self.ahead = ahead

    def forward(self, x):
        h = self.body(self.stem(x))[:, :, -1]
        return self.head(h).view(-1, 3, self.ahead)


def pinball(pred, target, levels):
    diff = target[:, None] - pred
    return torch.maximum(levels * diff, (levels - 1) * diff).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--hours", type=int, default=8760)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    loads = simulate_feeders(24, opt.hours, seed=3)
    loader = DataLoader(FeederWindows(loads, 168, 24, opt), batch_size=opt.batch, shuffle=True, drop_last=True)
    model = FeederNet(24)
    optim = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    levels = torch.tensor([0.1, 0.5, 0.9]).view(1, 3, 1)

    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for x, y in loader:
            loss = pinball(model(x), y, levels)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 100 == 0:
                print(f"step {len(times)} pinball {loss.item():.4f}")
            if last - begin >= opt.seconds:
                break
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
