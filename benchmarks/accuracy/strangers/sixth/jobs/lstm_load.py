"""Day-ahead electricity load: encode four days of hourly readings, predict the next 24 values."""

import argparse
import json
import math
import time

import torch
from torch import nn

CONTEXT = 96
AHEAD = 24
HIDDEN = 64


def make_series(n=64, length=4000):
    g = torch.Generator().manual_seed(2)
    t = torch.arange(length, dtype=torch.float32)
    phase = torch.rand(n, 1, generator=g) * 6.28
    day = torch.sin(2 * math.pi * t / 24 + phase)
    week = torch.cos(2 * math.pi * t / 168 + phase)
    y = day + 0.4 * week + 0.1 * torch.randn(n, length, generator=g)
    return torch.stack([y, day, week], -1)


class Encoder(nn.Module):
    def __init__(self, n_in, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(n_in, hidden)
        self.hidden = hidden

    def forward(self, x):
        h = c = x.new_zeros(x.size(0), self.hidden)
        for step in range(x.size(1)):
            h, c = self.cell(x[:, step], (h, c))
        return h


class WholeEncoder(nn.Module):
    def __init__(self, n_in, hidden):
        super().__init__()
        self.rnn = nn.LSTM(n_in, hidden, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[1][0][0]


class Forecaster(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.encoder = (WholeEncoder if whole else Encoder)(3, HIDDEN)
        self.head = nn.Sequential(nn.Linear(HIDDEN, 128), nn.ReLU(), nn.Linear(128, AHEAD))

    def forward(self, x):
        return self.head(self.encoder(x))


def sample(series, size):
    rows = torch.randint(0, series.size(0), (size, 1))
    start = torch.randint(0, series.size(1) - CONTEXT - AHEAD, (size, 1))
    window = series[rows, start + torch.arange(CONTEXT + AHEAD)]
    return window[:, :CONTEXT], window[:, CONTEXT:, 0]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12.0)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", default=None)
    args = p.parse_args()

    torch.manual_seed(0)
    series = make_series()
    model = Forecaster(args.better)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_fn = nn.HuberLoss()

    durations = []
    started = time.perf_counter()
    while time.perf_counter() - started < args.seconds:
        t = time.perf_counter()
        x, y = sample(series, 32)
        loss = loss_fn(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        durations.append(time.perf_counter() - t)
        if len(durations) % 60 == 0:
            print(f"{len(durations):>5} huber {loss.item():.4f}")

    with torch.inference_mode():
        x, y = sample(series, 256)
        print("mae", (model(x) - y).abs().mean().item())
    if args.times:
        with open(args.times, "w") as f:
            json.dump(durations, f)


if __name__ == "__main__":
    main()
