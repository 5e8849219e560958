"""Next-week demand per article: a decomposed linear model over the last year, trained on random windows.

The warehouse dump is a table with one row per day and one column per article.
"""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn

DAYS, ARTICLES = 900, 60_000
PAST, FUTURE = 364, 7


def warehouse_dump():
    rng = np.random.default_rng(2)
    level = rng.gamma(2.0, 8.0, ARTICLES).astype(np.float32)
    table = np.empty((DAYS, ARTICLES), np.float32)
    week = 1 + 0.3 * np.sin(np.arange(DAYS) * 2 * np.pi / 7)
    noise = rng.random(ARTICLES + DAYS, dtype=np.float32)
    for day in range(DAYS):
        table[day] = level * week[day] * (0.5 + noise[day : day + ARTICLES])
    return table


class Windows:
    """Random (article, start) windows out of the sales history."""

    def __init__(self, table, args):
        history = torch.from_numpy(table)  # (days, articles)
        self.series = history.t()  # one series per article
        if args.better:
            self.series = self.series.contiguous()
        self.offsets = torch.arange(PAST + FUTURE)
        self.g = torch.Generator().manual_seed(11)

    def batch(self, n):
        article = torch.randint(0, ARTICLES, (n,), generator=self.g)
        start = torch.randint(0, DAYS - PAST - FUTURE, (n,), generator=self.g)
        window = self.series[article[:, None], start[:, None] + self.offsets]
        past, future = window.split([PAST, FUTURE], dim=1)
        scale = past.mean(1, keepdim=True) + 1
        return past / scale, future / scale


class DLinear(nn.Module):
    """Trend (moving average) and remainder, each with its own linear map, plus calendar effects."""

    def __init__(self, kernel=28, hidden=64):
        super().__init__()
        self.pad, self.kernel = kernel // 2, kernel
        self.trend = nn.Linear(PAST, FUTURE)
        self.rest = nn.Sequential(nn.Linear(PAST, hidden), nn.ReLU(), nn.Linear(hidden, FUTURE))
        self.weekday = nn.Parameter(torch.zeros(FUTURE))

    def forward(self, x):
        sums = nn.functional.pad(x, (self.pad + 1, self.pad - 1), mode="replicate").cumsum(1)
        trend = (sums[:, self.kernel :] - sums[:, : -self.kernel]) / self.kernel
        trend = nn.functional.pad(trend, (0, PAST - trend.shape[1]), mode="replicate")
        return self.trend(trend) + self.rest(x - trend) + self.weekday


def quantile_loss(pred, target, q=0.6):
    d = target - pred
    return torch.maximum(q * d, (q - 1) * d).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    windows = Windows(warehouse_dump(), args)
    model = DLinear()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    running = torch.zeros(())

    times, step = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        past, future = windows.batch(4096)
        loss = quantile_loss(model(past), future)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running.lerp_(loss.detach(), 0.05)
        times.append(time.perf_counter() - t0)
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {running.item():.4f}")

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
