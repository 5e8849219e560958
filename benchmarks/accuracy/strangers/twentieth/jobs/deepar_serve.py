"""Probabilistic forecasts (DeepAR style) served request by request."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn

HISTORY, HORIZON, COVARIATES = 168, 12, 6
QUANTILES = (0.1, 0.5, 0.9)


class DeepAR(nn.Module):
    def __init__(self, n_series=500, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(n_series, 8)
        self.lstm = nn.LSTM(1 + COVARIATES + 8, hidden, num_layers=2, batch_first=True)
        self.mu = nn.Linear(hidden, 1)
        self.sigma = nn.Linear(hidden, 1)

    def features(self, target, covariates, series):
        e = self.emb(series)[:, None].expand(-1, target.shape[1], -1)
        return torch.cat([target[..., None], covariates, e], -1)

    def encode(self, target, covariates, series):
        out, state = self.lstm(self.features(target, covariates, series))
        return out[:, -1], state

    def distribution(self, h):
        return self.mu(h), nn.functional.softplus(self.sigma(h)) + 1e-3


class Forecaster:
    def __init__(self, model, n_paths=150, late_expand=False, seed=0):
        self.model = model.eval()
        self.n_paths = n_paths
        self.late_expand = late_expand
        self.gen = torch.Generator().manual_seed(seed)

    def paths(self, x):
        return x.repeat_interleave(self.n_paths, 0)

    @torch.inference_mode()
    def sample_paths(self, history, cov_past, cov_future, series):
        scale = history.abs().mean(1, keepdim=True) + 1.0
        scaled = history / scale
        if self.late_expand:
            h, state = self.model.encode(scaled, cov_past, series)
            h = self.paths(h)
            state = tuple(s.repeat_interleave(self.n_paths, 1) for s in state)
            cov_future, series = self.paths(cov_future), self.paths(series)
        else:
            scaled, cov_past, cov_future, series = map(self.paths, (scaled, cov_past, cov_future, series))
            h, state = self.model.encode(scaled, cov_past, series)

        draws = []
        for t in range(HORIZON):
            mu, sigma = self.model.distribution(h)
            value = mu + sigma * torch.randn(mu.shape, generator=self.gen)
            draws.append(value)
            if t + 1 < HORIZON:
                step = self.model.features(value, cov_future[:, t : t + 1], series)
                out, state = self.model.lstm(step, state)
                h = out[:, 0]
        draws = torch.cat(draws, 1).view(-1, self.n_paths, HORIZON)
        return draws * scale[:, :, None]

    def handle(self, payload):
        request = json.loads(payload)
        history = torch.tensor(request["history"])
        series = torch.tensor(request["series"])
        hours = torch.arange(request["start_hour"], request["start_hour"] + HISTORY + HORIZON)
        cov = calendar_features(hours).expand(len(series), -1, -1)
        draws = self.sample_paths(history, cov[:, :HISTORY], cov[:, HISTORY:], series)
        q = torch.quantile(draws, torch.tensor(QUANTILES), dim=1)
        return json.dumps(
            {str(p): [[round(v, 3) for v in row] for row in rows.tolist()] for p, rows in zip(QUANTILES, q)}
        )


def calendar_features(hours):
    day = 2 * torch.pi * (hours % 24) / 24
    week = 2 * torch.pi * (hours % 168) / 168
    return torch.stack([day.sin(), day.cos(), week.sin(), week.cos(), (2 * day).sin(), (2 * day).cos()], -1)


def requests(seed):
    rng = np.random.default_rng(seed)
    t = np.arange(HISTORY)
    while True:
        n = 2
        level = rng.lognormal(2, 0.5, (n, 1))
        history = level * (1 + 0.4 * np.sin(2 * np.pi * t / 24 + rng.random((n, 1)) * 6)) + rng.normal(
            0, 0.3, (n, HISTORY)
        )
        yield json.dumps(
            {
                "history": history.round(3).tolist(),
                "series": rng.integers(0, 500, n).tolist(),
                "start_hour": int(rng.integers(0, 5000)),
            }
        )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    service = Forecaster(DeepAR(), late_expand=args.better)
    times, answered = [], 0
    start = last = time.perf_counter()
    for payload in requests(1):
        answered += len(service.handle(payload))
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    print(f"{len(times)} requests, {answered / 1024:.0f} KiB answered")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
