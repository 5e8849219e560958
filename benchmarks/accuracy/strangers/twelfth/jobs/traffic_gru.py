"""Traffic speed forecasting on road sensors with a recurrent encoder."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn

SENSORS, HISTORY, HORIZON = 24, 72, 12


def load_speeds(days=40):
    rng = np.random.default_rng(7)
    t = np.arange(days * 288)
    base = 60 - 20 * np.exp(-(((t % 288 - 100) / 20.0) ** 2)) - 15 * np.exp(-(((t % 288 - 210) / 25.0) ** 2))
    x = base[:, None] + rng.normal(0, 2, (t.size, SENSORS)) + rng.normal(0, 3, SENSORS)
    x = (x - x.mean(0)) / x.std(0)
    return torch.tensor(x, dtype=torch.float32)


class StepEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.GRUCell(SENSORS, width)
        self.width = width

    def forward(self, x):
        h = x.new_zeros(x.size(0), self.width)
        states = []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            states.append(h)
        return torch.stack(states, dim=1)


class LayerEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gru = nn.GRU(SENSORS, width, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]


class Forecaster(nn.Module):
    def __init__(self, encoder, width):
        super().__init__()
        self.encoder = encoder
        self.score = nn.Linear(width, 1)
        self.head = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, HORIZON * SENSORS))

    def forward(self, x):
        h = self.encoder(x)
        w = torch.softmax(self.score(h), dim=1)
        return self.head((w * h).sum(1)).view(-1, HORIZON, SENSORS)


def sample(series, batch):
    starts = torch.randint(0, len(series) - HISTORY - HORIZON, (batch,))
    idx = starts[:, None] + torch.arange(HISTORY + HORIZON)
    block = series[idx]
    return block[:, :HISTORY], block[:, HISTORY:]


def run(args):
    series = load_speeds()
    width = 64
    encoder = LayerEncoder(width) if args.better else StepEncoder(width)
    model = Forecaster(encoder, width)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    record, avg = [], None
    t0 = prev = time.perf_counter()
    step = 0
    while prev - t0 < args.seconds:
        x, y = sample(series, args.batch)
        opt.zero_grad()
        loss = (model(x) - y).abs().mean()
        loss.backward()
        opt.step()
        step += 1
        if step % 25 == 0:
            value = loss.item()
            avg = value if avg is None else 0.9 * avg + 0.1 * value
        now = time.perf_counter()
        record.append(now - prev)
        prev = now
    print(f"{step} updates, MAE {avg:.4f}" if avg else f"{step} updates")
    return record


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    torch.manual_seed(0)
    record = run(args)
    if args.times:
        np.savetxt(args.times, np.asarray(record))


if __name__ == "__main__":
    main()
