"""Groundwater level rollout: a large explicit cell stepped through time, scheduled sampling, several losses logged."""

import argparse
import json
import random
import time

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, h):
        return torch.relu(self.b(torch.relu(self.a(h))))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    size, wells, horizon = 384, 384, 8
    cell, read = Cell(size), nn.Linear(size, 1)
    params = [*cell.parameters(), *read.parameters()]
    opt = torch.optim.SGD(params, lr=1e-3)
    start = torch.randn(4096, size)
    level = torch.randn(4096, horizon)
    history, times = [], []
    end = time.perf_counter() + a.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        rows = torch.randint(0, 4096, (wells,))
        h, target = start[rows], level[rows]
        losses = []
        for t in range(horizon):
            h = cell(h)
            guess = read(h).squeeze(1)
            losses.append((guess - target[:, t]).square().mean())
            if random.random() < 0.2:
                h = h.clone()
                h[:, 0] = target[:, t]
        loss = sum(losses) / horizon
        for q in params:
            q.grad = None
        loss.backward()
        opt.step()
        history.append({"step": len(history), **{f"lead{t}": v.item() for t, v in enumerate(losses)}})
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            print(json.dumps(history[-1]))
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
