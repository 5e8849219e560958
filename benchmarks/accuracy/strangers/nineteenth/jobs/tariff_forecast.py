"""Serving of a probabilistic demand forecast: an autoregressive LSTM draws sample paths and returns quantiles."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CONTEXT, HORIZON = 168, 24


def calendar(t):
    hour = t % 24
    week = t % 168
    return torch.stack(
        [
            torch.sin(hour * (2 * math.pi / 24)),
            torch.cos(hour * (2 * math.pi / 24)),
            torch.sin(week * (2 * math.pi / 168)),
            torch.cos(week * (2 * math.pi / 168)),
        ],
        -1,
    )


class DemandRNN(nn.Module):
    def __init__(self, hidden=64, layers=2, static=8):
        super().__init__()
        self.site = nn.Embedding(500, static)
        self.rnn = nn.LSTM(1 + 4 + static, hidden, layers, batch_first=True)
        self.mu = nn.Linear(hidden, 1)
        self.sigma = nn.Linear(hidden, 1)

    def features(self, value, clock, site):
        s = self.site(site)[:, None].expand(-1, value.shape[1], -1)
        return torch.cat([value[..., None], clock, s], -1)

    def dist(self, h):
        return self.mu(h).squeeze(-1), F.softplus(self.sigma(h)).squeeze(-1) + 1e-3


class Forecaster:
    def __init__(self, model, paths=80):
        self.model = model.eval()
        self.paths = paths

    def encode(self, scaled, clock, site):
        """State after the context and the last output, one row for each sample path."""
        n = self.paths
        scaled = scaled.repeat_interleave(n, 0)
        clock = clock.repeat_interleave(n, 0)
        out, state = self.model.rnn(self.model.features(scaled, clock, site.repeat_interleave(n, 0)))
        return out[:, -1], state

    @torch.inference_mode()
    def predict(self, history, start, site):
        scale = history.abs().mean(1, keepdim=True) + 1e-3
        steps = torch.arange(CONTEXT + HORIZON, dtype=torch.float32)
        clock = calendar(start[:, None] + steps)
        last, state = self.encode(history / scale, clock[:, :CONTEXT], site)
        site = site.repeat_interleave(self.paths, 0)
        future = clock[:, CONTEXT:].repeat_interleave(self.paths, 0)
        draws = []
        for t in range(HORIZON):
            mu, sigma = self.model.dist(last)
            value = mu + sigma * torch.randn_like(mu)
            draws.append(value)
            if t + 1 < HORIZON:
                out, state = self.model.rnn(self.model.features(value[:, None], future[:, t : t + 1], site), state)
                last = out[:, 0]
        sample = torch.stack(draws, -1).view(len(history), self.paths, HORIZON) * scale[:, :, None]
        return torch.quantile(sample, torch.tensor([0.1, 0.5, 0.9]), dim=1)


class LeanForecaster(Forecaster):
    def encode(self, scaled, clock, site):
        out, (h, c) = self.model.rnn(self.model.features(scaled, clock, site))
        n = self.paths
        return out[:, -1].repeat_interleave(n, 0), (h.repeat_interleave(n, 1), c.repeat_interleave(n, 1))


def requests(size, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(CONTEXT, dtype=torch.float32)
    while True:
        start = torch.randint(0, 168, (size,), generator=g).float()
        level = torch.rand(size, 1, generator=g) * 50 + 5
        wave = 1 + 0.4 * torch.sin((start[:, None] + t) * (2 * math.pi / 24))
        history = level * wave + torch.randn(size, CONTEXT, generator=g)
        yield history, start, torch.randint(0, 500, (size,), generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    service = (LeanForecaster if args.better else Forecaster)(DemandRNN())
    queue = requests(4)
    times, served = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        quantiles = service.predict(*next(queue))
        reply = json.dumps(quantiles.tolist())
        served += 1
        if served % 20 == 0:
            print(f"served {served} reply {len(reply)} bytes, {(last - start) / served * 1e3:.1f} ms each", flush=True)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
