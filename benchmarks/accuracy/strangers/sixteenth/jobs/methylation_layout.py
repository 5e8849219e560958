"""Age prediction from methylation: a beta-value matrix in the usual probes x samples orientation."""

import argparse
import json
import time

import torch
from torch import nn


class BetaMatrix:
    """Rows are probes, columns are samples, as the array software exports it."""

    def __init__(self, probes=900, samples=24_000, by_sample=False, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.age = torch.rand(samples, generator=g)
        slope = torch.randn(probes, 1, generator=g) * 0.3
        self.values = torch.sigmoid(torch.randn(probes, samples, generator=g).add_(slope * self.age))
        self.g = g
        self.fetch = self.columns
        if by_sample:
            self.values = self.values.t().contiguous()
            self.fetch = self.rows

    def columns(self, index):
        return self.values[:, index].t()

    def rows(self, index):
        return self.values[index]

    def epoch(self, size):
        order = torch.randperm(len(self.age), generator=self.g)
        for index in order.split(size):
            yield self.fetch(index), self.age[index]


class AgeClock(nn.Module):
    def __init__(self, probes=900, width=64):
        super().__init__()
        self.norm = nn.BatchNorm1d(probes)
        self.net = nn.Sequential(
            nn.Linear(probes, width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, beta):
        return self.net(self.norm(beta)).squeeze(1)


def mean_error(pred, age):
    return (pred - age).abs().mean() * 100


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=512)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    data = BetaMatrix(by_sample=args.better)
    model = AgeClock()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    times, begin = [], time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        for beta, age in data.epoch(args.batch):
            loss = nn.functional.l1_loss(model(beta), age)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
    model.eval()
    with torch.no_grad():
        beta, age = next(data.epoch(args.batch))
        print(f"{len(times)} steps, error {mean_error(model(beta), age):.2f} years")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
