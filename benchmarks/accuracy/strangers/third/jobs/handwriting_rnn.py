# Handwriting-style stroke generation: LSTM with a mixture-of-Gaussians output.
import argparse
import json
import math
import time

import torch
import torch.nn as nn


def strokes(n, length):
    t = torch.linspace(0, 12, length)
    f = torch.rand(n, 1) * 3 + 1
    p = torch.rand(n, 1) * 6
    xy = torch.stack([(f * t + p).sin() + 0.1 * t, (f * t * 1.3).cos()], -1)
    return (xy[:, 1:] - xy[:, :-1]) * 10


class CellRNN(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.cell = nn.LSTMCell(i, h)
        self.h = h

    def forward(self, x):
        h = x.new_zeros(x.size(0), self.h)
        c = torch.zeros_like(h)
        outs = []
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t], (h, c))
            outs.append(h)
        return torch.stack(outs, 1)


class LayerRNN(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.rnn = nn.LSTM(i, h, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class StrokeModel(nn.Module):
    def __init__(self, rnn, hidden=64, mix=5):
        super().__init__()
        self.r1, self.r2 = rnn(2, hidden), rnn(hidden + 2, hidden)
        self.out = nn.Linear(hidden, mix * 5)
        self.mix = mix

    def forward(self, x):
        h = self.r1(x)
        h = self.r2(torch.cat([h, x], -1))
        return self.out(h).unflatten(-1, (self.mix, 5))

    def nll(self, x):
        o = self(x[:, :-1])
        y = x[:, 1:, None]
        logw = o[..., 0].log_softmax(-1)
        mu, ls = o[..., 1:3], o[..., 3:5].clamp(-5, 3)
        logp = -0.5 * ((y - mu) / ls.exp()) ** 2 - ls - 0.5 * math.log(2 * math.pi)
        return -(logw + logp.sum(-1)).logsumexp(-1).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--length", type=int, default=80)
    a = ap.parse_args()
    torch.manual_seed(0)
    model = StrokeModel(LayerRNN if a.better else CellRNN)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    times = []
    until = time.perf_counter() + a.seconds
    while time.perf_counter() < until:
        t = time.perf_counter()
        loss = model.nll(strokes(16, a.length))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 10)
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 25 == 0:
            print(f"{len(times)} nll {loss.item():.3f}")
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
