"""A graph network on molecules that sums over edges in double precision, for stability."""

import argparse
import json
import time

import torch
from torch import nn


class EdgeConv(nn.Module):
    def __init__(self, dim, wide):
        super().__init__()
        self.message = nn.Linear(2 * dim, dim)
        self.update = nn.Linear(2 * dim, dim)
        self.wide = wide

    def forward(self, h, source, target):
        m = torch.relu(self.message(torch.cat([h[source], h[target]], 1)))
        if self.wide:
            weights = torch.sigmoid(m.double().sum(1, keepdim=True)).float()
            m = (m.double() * weights.double()).float()
            total = torch.zeros(h.shape, dtype=torch.float64).index_add(0, target, m.double()).float()
            total = (total.double() / (1 + total.double().abs().amax())).float()
        else:
            weights = torch.sigmoid(m.sum(1, keepdim=True))
            total = torch.zeros_like(h).index_add(0, target, m * weights)
            total = total / (1 + total.abs().amax())
        return h + torch.relu(self.update(torch.cat([h, total], 1)))


class Net(nn.Module):
    def __init__(self, wide, dim=64):
        super().__init__()
        self.atom = nn.Embedding(20, dim)
        self.layers = nn.ModuleList(EdgeConv(dim, wide) for _ in range(3))
        self.out = nn.Linear(dim, 1)

    def forward(self, atoms, source, target, graph, n):
        h = self.atom(atoms)
        for layer in self.layers:
            h = layer(h, source, target)
        return self.out(torch.zeros(n, h.shape[1]).index_add(0, graph, h)).squeeze(1)


def batch(n=96, atoms=20, bonds=80):
    offset = torch.arange(n).repeat_interleave(bonds) * atoms
    source = torch.randint(0, atoms, (n * bonds,)) + offset
    target = torch.randint(0, atoms, (n * bonds,)) + offset
    return torch.randint(0, 20, (n * atoms,)), source, target, torch.arange(n).repeat_interleave(atoms), torch.randn(n)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net(wide=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = [batch() for _ in range(20)]
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        atoms, source, target, graph, y = batches[step % 20]
        loss = (model(atoms, source, target, graph, len(y)) - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("steps", step, "mae", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
