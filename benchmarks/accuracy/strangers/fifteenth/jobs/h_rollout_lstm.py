"""River level forecast: encoder LSTM, then an autoregressive cell that eats its own predictions."""

import argparse
import json
import time

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, inputs=12, hidden=192, horizon=24):
        super().__init__()
        self.encoder = nn.LSTM(inputs, hidden, batch_first=True)
        self.cell = nn.LSTMCell(1 + 3, hidden)
        self.out = nn.Linear(hidden, 1)
        self.horizon = horizon

    def forward(self, past, calendar):
        _, (h, c) = self.encoder(past)
        h, c = h[0], c[0]
        level, path = past[:, -1, :1], []
        for k in range(self.horizon):
            h, c = self.cell(torch.cat([level, calendar[:, k]], 1), (h, c))
            level = level + self.out(h)
            path.append(level)
        return torch.cat(path, 1)


class Gauges:
    def __init__(self, n=600, past=96, horizon=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        steps = past + horizon
        rain = torch.relu(torch.randn(n, steps, 11, generator=g))
        level = rain.mean(-1).cumsum(1) * 0.05
        season = torch.rand(n, horizon, 3, generator=g)
        self.past = torch.cat([level[:, :past, None], rain[:, :past]], -1)
        self.future, self.season = level[:, past:], season

    def draw(self, size):
        rows = torch.randint(len(self.past), (size,))
        return self.past[rows], self.season[rows], self.future[rows]


def quantile_loss(pred, true, q=0.6):
    e = true - pred
    return torch.maximum(q * e, (q - 1) * e).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    p.add_argument("--batch", type=int, default=64)
    args = p.parse_args()
    torch.manual_seed(0)
    model, data = Forecaster(), Gauges()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    times, start, average = [], time.perf_counter(), 0.0
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        past, calendar, future = data.draw(args.batch)
        loss = quantile_loss(model(past, calendar), future)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        average = 0.95 * average + 0.05 * loss.item()
        if len(times) % 50 == 0:
            print(f"{len(times):6d} pinball {average:.4f}")
        times.append(time.perf_counter() - t)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
