"""Day-ahead load forecast for feeders: recurrent encoder over the last days, quantile output."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn

QUANTILES = (0.1, 0.5, 0.9)
HISTORY = 96
HORIZON = 24


def feeder_series(feeders=40, hours=24 * 200, seed=2):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    daily = np.sin(2 * np.pi * (t / 24 + rng.random((feeders, 1))))
    weekly = 0.3 * np.sin(2 * np.pi * t / 168 + rng.random((feeders, 1)))
    noise = 0.05 * rng.normal(size=(feeders, hours)).cumsum(1) / np.sqrt(hours)
    load = daily + weekly + noise + 0.1 * rng.normal(size=(feeders, hours))
    temp = np.broadcast_to(np.cos(2 * np.pi * t / 24), load.shape)
    hour = np.broadcast_to((t % 24) / 24, load.shape)
    return torch.from_numpy(np.stack([load, temp, hour], -1).astype(np.float32))


class Windows:
    def __init__(self, series, batch, seed):
        self.views = series.unfold(1, HISTORY + HORIZON, 1)
        self.batch = batch
        self.g = torch.Generator().manual_seed(seed)

    def next(self):
        f = torch.randint(self.views.shape[0], (self.batch,), generator=self.g)
        s = torch.randint(self.views.shape[1], (self.batch,), generator=self.g)
        w = self.views[f, s].transpose(1, 2)
        return w[:, :HISTORY].contiguous(), w[:, HISTORY:, 0]


class StepEncoder(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)
        self.hidden = hidden

    def forward(self, x):
        h = x.new_zeros(len(x), self.hidden)
        c = torch.zeros_like(h)
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1)


class SequenceEncoder(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.rnn = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class Forecaster(nn.Module):
    def __init__(self, encoder, inputs=3, hidden=64):
        super().__init__()
        self.encoder = encoder(inputs, hidden)
        self.score = nn.Linear(hidden, 1)
        self.head = nn.Sequential(nn.Linear(2 * hidden, 128), nn.ReLU(), nn.Linear(128, HORIZON * len(QUANTILES)))

    def forward(self, x):
        states = self.encoder(x)
        weight = self.score(states).softmax(1)
        summary = torch.cat([states[:, -1], (weight * states).sum(1)], 1)
        return self.head(summary).view(-1, HORIZON, len(QUANTILES))


def pinball(pred, truth):
    q = pred.new_tensor(QUANTILES)
    err = truth.unsqueeze(-1) - pred
    return torch.maximum(q * err, (q - 1) * err).mean()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    torch.manual_seed(0)

    series = feeder_series()
    train = Windows(series[:, : -24 * 20], args.batch, 0)
    valid = Windows(series[:, -24 * 20 :], 256, 1)
    held_x, held_y = valid.next()
    model = Forecaster(SequenceEncoder if args.better else StepEncoder)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    spent = []
    begin = time.perf_counter()
    step = 0
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        x, y = train.next()
        loss = pinball(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        spent.append(time.perf_counter() - t0)
        step += 1
        if step % 200 == 0:
            with torch.inference_mode():
                print(f"step {step} pinball {pinball(model(held_x), held_y).item():.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(spent, f)


if __name__ == "__main__":
    main()
