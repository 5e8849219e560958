"""Load forecasting: a peephole-like LSTM written by hand, over a day of quarter hours."""

import argparse
import json
import math
import time

import torch
from torch import nn


class HandLSTM(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.hidden = hidden
        self.wf = nn.Linear(inputs + hidden, hidden)
        self.wi = nn.Linear(inputs + hidden, hidden)
        self.wo = nn.Linear(inputs + hidden, hidden)
        self.wc = nn.Linear(inputs + hidden, hidden)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.hidden)
        c = x.new_zeros(x.shape[0], self.hidden)
        outputs = []
        for t in range(x.shape[1]):
            z = torch.cat([x[:, t], h], dim=1)
            f, i, o = torch.sigmoid(self.wf(z)), torch.sigmoid(self.wi(z)), torch.sigmoid(self.wo(z))
            c = f * c + i * torch.tanh(self.wc(z))
            h = o * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h, c)


class Forecaster(nn.Module):
    def __init__(self, kind, inputs=8, hidden=160):
        super().__init__()
        self.rnn = HandLSTM(inputs, hidden) if kind == "hand" else nn.LSTM(inputs, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 4)

    def forward(self, x):
        sequence, _ = self.rnn(x)
        return self.out(sequence[:, -1])


def make_series(n=3000, window=96):
    t = torch.arange(n + window, dtype=torch.float32)
    series = torch.stack(
        [torch.sin(t * 2 * math.pi / p) + 0.1 * torch.randn_like(t) for p in (4, 96, 672, 7, 30, 12, 5, 24)], 1
    )
    return series.unfold(0, window, 1).transpose(1, 2)[:n].contiguous(), series[window : window + n, :4]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = make_series()
    model = Forecaster("torch" if args.better else "hand")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    times, start = [], time.perf_counter()
    last, epoch, running = start, 0, True
    while running:
        order = torch.randperm(len(x))
        for i in range(0, len(x), 32):
            index = order[i : i + 32]
            loss = nn.functional.mse_loss(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start > args.seconds:
                running = False
                break
        epoch += 1
        print("epoch", epoch, "loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
