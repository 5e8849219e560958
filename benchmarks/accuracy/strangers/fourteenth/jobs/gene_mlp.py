"""Survival-risk MLP on gene expression; the matrix comes from the lab as a float table."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn

GENES = 2000


def read_expression(patients=3000):
    rng = np.random.default_rng(12)
    counts = rng.poisson(5, size=(patients, GENES))
    expr = np.log1p(counts)
    expr = (expr - expr.mean(0)) / expr.std(0)
    risk = expr[:, :20].sum(1) * 0.2
    times = rng.exponential(np.exp(-risk))
    observed = rng.random(patients) < 0.7
    return expr, times, observed


class RiskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(GENES, 512),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(256, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)


def cox_loss(risk, t, event):
    order = t.argsort(descending=True)
    risk, event = risk[order], event[order]
    return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    expr, t, observed = read_expression()
    net = RiskNet()
    if args.better:
        expr, t = expr.astype(np.float32), t.astype(np.float32)
    x, t = torch.from_numpy(expr), torch.from_numpy(t)
    event = torch.from_numpy(observed).to(x.dtype)
    net = net.to(x.dtype)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4, weight_decay=1e-4)

    steps = []
    start = time.perf_counter()
    prev = start
    while prev - start < args.seconds:
        for idx in torch.randperm(len(x)).split(200):
            loss = cox_loss(net(x[idx]), t[idx], event[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            steps.append(now - prev)
            prev = now
            if now - start >= args.seconds:
                break
    print(f"partial likelihood {loss.item():.3f} after {len(steps)} steps")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(steps, fh)


if __name__ == "__main__":
    main()
