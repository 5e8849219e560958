"""Building energy use: residual MLP regression on standardised sensor features."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ResidualBlock(nn.Module):
    def __init__(self, dim, drop=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim * 2)
        self.fc2 = nn.Linear(dim * 2, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return x + self.drop(self.fc2(F.relu(self.fc1(self.norm(x)))))


class EnergyNet(nn.Module):
    def __init__(self, features, dim=192, depth=4):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.blocks = nn.Sequential(*[ResidualBlock(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))).squeeze(-1)


def load_table(rows=50_000, features=48):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features)) * rng.uniform(0.1, 50, features)
    y = np.sin(x[:, 0]) + x[:, 1:5].mean(1) + 0.1 * rng.normal(size=rows)
    x = (x - x.mean(0)) / x.std(0)
    y = (y - y.mean()) / y.std()
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    x, y = load_table()
    model = EnergyNet(x.shape[1])
    if args.better:
        x, y = x.astype(np.float32), y.astype(np.float32)
    else:
        model = model.double()
    features, target = torch.from_numpy(x), torch.from_numpy(y)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    times = []
    order = torch.randperm(len(features))
    cursor, batch = 0, 512
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        if cursor + batch > len(order):
            order, cursor = torch.randperm(len(features)), 0
        idx = order[cursor : cursor + batch]
        cursor += batch
        loss = F.huber_loss(model(features[idx]), target[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, huber {loss.item():.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
