"""Keyword spotting from raw audio: a Gabor filter front end and a small recurrent classifier."""

import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
RATE, SECONDS, BATCH, WORDS = 8000, 1, 24, 20


def gabor_bank(filters=64, width=201):
    """Complex Gabor kernels on a mel-spaced grid, as (2 * filters, 1, width)."""
    mel = np.linspace(2595 * np.log10(1 + 60 / 700), 2595 * np.log10(1 + 3800 / 700), filters)
    centre = 700 * (10 ** (mel / 2595) - 1)
    t = (np.arange(width) - width // 2) / RATE
    env = np.exp(-0.5 * (t[None] * centre[:, None] / 3.0) ** 2)
    env /= env.sum(1, keepdims=True)
    phase = 2 * math.pi * centre[:, None] * t[None]
    return np.concatenate([env * np.cos(phase), env * np.sin(phase)])[:, None]


class FrontEnd(nn.Module):
    def __init__(self, filters=64):
        super().__init__()
        kernels = torch.from_numpy(gabor_bank(filters))
        if CURED:
            kernels = kernels.float()
        self.kernels = nn.Parameter(kernels)
        self.gain = nn.Parameter(torch.ones(filters))

    def forward(self, wave):
        h = F.conv1d(wave.unsqueeze(1).to(self.kernels), self.kernels, stride=8, padding=100)
        re, im = h.chunk(2, 1)
        power = F.avg_pool1d(re.square() + im.square(), 16)
        return torch.log1p(power.float() * self.gain[:, None].exp())


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = FrontEnd()
        self.conv = nn.Sequential(
            nn.Conv1d(64, 128, 5, padding=2), nn.ReLU(), nn.Conv1d(128, 128, 3, padding=1), nn.ReLU()
        )
        self.rnn = nn.GRU(128, 128, batch_first=True)
        self.out = nn.Linear(128, WORDS)

    def forward(self, wave):
        _, h = self.rnn(self.conv(self.front(wave)).transpose(1, 2))
        return self.out(h[-1])


class Recordings:
    def __init__(self, n=600):
        g = torch.Generator().manual_seed(4)
        self.wave = torch.randint(-20000, 20000, (n, RATE * SECONDS), generator=g).to(torch.int16)
        self.word = torch.randint(0, WORDS, (n,), generator=g)
        self.g = g

    def __iter__(self):
        while True:
            i = torch.randint(0, len(self.word), (BATCH,), generator=self.g)
            shift = int(torch.randint(0, 800, (1,), generator=self.g))
            yield self.wave[i].roll(shift, 1).float() / 32768, self.word[i]


def training(model, data):
    opt = torch.optim.NAdam(model.parameters(), lr=1e-3)
    for wave, word in data:
        loss = F.cross_entropy(model(wave), word, label_smoothing=0.1)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        yield loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    run, times = training(Spotter(), Recordings()), []
    for i in range(STEPS):
        t0 = time.perf_counter()
        loss = next(run)
        if i % 30 == 0:
            print(f"{i:4d} {loss.item():.3f}", flush=True)
        times.append(time.perf_counter() - t0)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
