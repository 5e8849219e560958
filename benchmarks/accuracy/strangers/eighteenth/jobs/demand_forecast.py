"""Retail demand forecasting; keeps a resumable checkpoint on disk."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class DemandMLP(nn.Module):
    def __init__(self, stores=5000, dim=64, window=28, hidden=512, horizon=7):
        super().__init__()
        self.store = nn.Embedding(stores, dim)
        self.body = nn.Sequential(
            nn.Linear(4 * window + dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.out = nn.Linear(hidden, horizon)

    def forward(self, series, store):
        return self.out(self.body(torch.cat([series.flatten(1), self.store(store)], dim=1)))


class Trainer:
    def __init__(self, workdir, save_every):
        self.model = DemandMLP()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        self.path = os.path.join(workdir, "last.pt")
        self.save_every = save_every
        self.step_count = 0

    def save(self):
        tmp = self.path + ".tmp"
        torch.save(
            {"step": self.step_count, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, tmp
        )
        os.replace(tmp, self.path)

    def step(self, series, store, target):
        loss = F.smooth_l1_loss(self.model(series, store), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_count += 1
        if self.step_count % self.save_every == 0:
            self.save()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    sales = torch.rand(5000, 400, 4)
    batch, window, horizon = 256, 28, 7
    times = []
    with tempfile.TemporaryDirectory() as workdir:
        trainer = Trainer(workdir, save_every=1000 if args.better else 1)
        last = time.perf_counter()
        stop = last + args.seconds
        while last < stop:
            store = torch.randint(0, len(sales), (batch,))
            t = int(torch.randint(0, 400 - window - horizon, ()))
            history = sales[store, t : t + window]
            future = sales[store, t + window : t + window + horizon, 0]
            loss = trainer.step(history, store, future)
            now = time.perf_counter()
            times.append(now - last)
            last = now
        trainer.save()
    print(f"{len(times)} steps, loss {loss.item():.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
