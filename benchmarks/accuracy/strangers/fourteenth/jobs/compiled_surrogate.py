"""Surrogate model for a simulator; compiled step, one 'campaign' of new samples per epoch."""

import argparse
import json
import time

import torch
from torch import nn


class Surrogate(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.inp = nn.Linear(12, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        h = torch.sin(self.inp(x))
        for lin, norm in zip(self.hidden, self.norms):
            h = h + norm(torch.sin(lin(h)))
        return self.out(h)


def simulate(n):
    x = torch.rand(n, 12) * 2 - 1
    y = torch.stack([x[:, :3].prod(1), x.sum(1).sin(), x.square().sum(1).cos(), x[:, 4] * x[:, 7]], 1)
    return x, y


def tidy(keep_graphs):
    if not keep_graphs:
        torch._dynamo.reset()


def train(args):
    torch.manual_seed(0)
    model = Surrogate()
    step_fn = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step_fn(simulate(512)[0]).sum().backward()
    times = []
    start = last = time.perf_counter()
    epoch = 0
    while True:
        inputs, outputs = simulate(512 * 32)
        for x, y in zip(inputs.split(512), outputs.split(512)):
            loss = nn.functional.mse_loss(step_fn(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start > args.seconds:
                return times
        epoch += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
        tidy(args.better)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    cli = ap.parse_args()
    measured = train(cli)
    if cli.times:
        with open(cli.times, "w") as f:
            json.dump(measured, f)
