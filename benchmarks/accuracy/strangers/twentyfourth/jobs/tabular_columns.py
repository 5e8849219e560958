"""Churn-style regression on a wide table that the column store hands over as one array per feature."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, COLS, BATCH = 200_000, 512, 1024

torch.manual_seed(23)


def read_columns():
    """Like a parquet reader: feature after feature, each a contiguous column of all rows."""
    g = torch.Generator().manual_seed(24)
    table = torch.empty(COLS, ROWS)
    for c in range(COLS):
        table[c] = torch.randn(ROWS, generator=g)
        if c % 5 == 0:
            table[c].abs_().log1p_()
    w = torch.randn(COLS, generator=g) / COLS**0.5
    signal = w @ table
    y = torch.tanh(signal) + 0.3 * signal * table[3] + 0.1 * torch.randn(ROWS, generator=g)
    return table, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(COLS, 128)
        self.mid = nn.Linear(128, 128)
        self.out = nn.Linear(128, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = F.gelu(self.inp(x))
        h = h + self.drop(F.gelu(self.mid(h)))
        return self.out(h).squeeze(1)


class Table:
    def __init__(self, better):
        self.columns, self.y = read_columns()
        mean = self.columns.mean(1, keepdim=True)
        std = self.columns.std(1, keepdim=True)
        self.columns.sub_(mean).div_(std)
        self.table = self.columns.t().contiguous() if better else None

    def __len__(self):
        return len(self.y)

    def batch(self, rows):
        if self.table is not None:
            return self.table[rows], self.y[rows]
        return self.columns[:, rows].t(), self.y[rows]


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    data = Table(opt.better)
    model = Net()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3)
    gen = torch.Generator().manual_seed(25)
    cut = int(0.9 * len(data))
    perm, at = torch.randperm(cut, generator=gen), 0
    running = 0.0
    for step in steps_of(opt):
        if at + BATCH > cut:
            perm, at = torch.randperm(cut, generator=gen), 0
        x, y = data.batch(perm[at : at + BATCH])
        at += BATCH
        loss = F.mse_loss(model(x), y)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        running += loss.item()
        if (step + 1) % 250 == 0:
            with torch.no_grad():
                x, y = data.batch(torch.arange(cut, cut + 4096))
                model.eval()
                held = F.mse_loss(model(x), y).item()
                model.train()
            print(f"step {step + 1} loss {running / 250:.4f} held-out {held:.4f}", flush=True)
            running = 0.0


if __name__ == "__main__":
    main()
