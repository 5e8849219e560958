"""Demand-forecast service: a deep ensemble answers each request with quantiles over its members."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

HISTORY, HORIZON, MEMBERS, COVARIATES = 168, 24, 5, 6


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(HISTORY + COVARIATES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.backcast, self.forecast = nn.Linear(width, HISTORY), nn.Linear(width, 2 * HORIZON)

    def forward(self, residual, covariates):
        h = self.net(torch.cat([residual, covariates], 1))
        return residual - self.backcast(h), self.forecast(h)


class BeatsMember(nn.Module):
    def __init__(self, width=256, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, history, covariates):
        total = 0
        for block in self.blocks:
            history, part = block(history, covariates)
            total = total + part
        return total.chunk(2, 1)


def train_members(folder):
    """Stands for the nightly training: writes one checkpoint per member."""
    paths = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        path = Path(folder) / f"member_{seed}.pt"
        torch.save(BeatsMember().state_dict(), path)
        paths.append(path)
    return paths


def load_member(path):
    member = BeatsMember()
    member.load_state_dict(torch.load(path, weights_only=True))
    return member.eval()


class Forecaster:
    def __init__(self, paths, samples, better):
        self.paths, self.samples = paths, samples
        self.members = [load_member(path) for path in paths] if better else None

    def ensemble(self):
        if self.members is not None:
            yield from self.members
        else:
            for path in self.paths:
                yield load_member(path)

    @torch.inference_mode()
    def predict(self, history, covariates):
        level = history.mean(1, keepdim=True)
        scale = history.std(1, keepdim=True) + 1e-3
        x = (history - level) / scale
        draws = []
        for member in self.ensemble():
            mean, log_std = member(x, covariates)
            noise = torch.randn(self.samples, *mean.shape)
            draws.append(mean + noise * log_std.clamp(-4, 2).exp())
        paths = torch.cat(draws) * scale + level
        low, middle, high = paths.quantile(torch.tensor([0.1, 0.5, 0.9]), 0)
        return {"low": low, "median": middle, "high": high}


def requests(seed):
    rng = np.random.default_rng(seed)
    hours = np.arange(HISTORY)
    while True:
        series = 16
        base = rng.uniform(20, 200, (series, 1))
        wave = 1 + 0.4 * np.sin(2 * np.pi * (hours + rng.integers(0, 24, (series, 1))) / 24)
        history = base * wave + rng.normal(0, 5, (series, HISTORY))
        covariates = rng.normal(size=(series, COVARIATES))
        yield torch.from_numpy(history.astype(np.float32)), torch.from_numpy(covariates.astype(np.float32))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--samples", type=int, default=100)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        service = Forecaster(train_members(folder), args.samples, args.better)
        times, answered = [], 0
        begin = last = time.perf_counter()
        for history, covariates in requests(seed=51):
            answer = service.predict(history, covariates)
            body = json.dumps({name: values.round(decimals=2).tolist() for name, values in answer.items()})
            answered += len(body)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 100 == 0:
                print(f"{len(times)} requests, {answered >> 10} KiB answered", flush=True)
            if last - begin >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
