"""Cell-type annotation from single-cell counts (synthetic atlas, 12 types)."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn


class CountMatrix:
    """Raw UMI counts as they come out of the aligner: one row per gene."""

    def __init__(self, counts, labels):
        self.counts = counts
        self.labels = labels

    def __len__(self):
        return self.labels.shape[0]

    def cells(self, idx):
        return self.counts[:, idx].T, self.labels[idx]


class CellMatrix(CountMatrix):
    def __init__(self, counts, labels):
        super().__init__(np.ascontiguousarray(counts.T), labels)

    def cells(self, idx):
        return self.counts[idx], self.labels[idx]


def make_atlas(n_genes, n_cells, n_types, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, size=(n_genes, n_cells), dtype=np.uint8)
    labels = rng.integers(0, n_types, size=n_cells)
    for t in range(n_types):
        markers = rng.choice(n_genes, 15, replace=False)
        where = np.flatnonzero(labels == t)[:2000]
        counts[np.ix_(markers, where)] += 7
    return counts, labels


def normalise(counts):
    x = torch.from_numpy(np.ascontiguousarray(counts)).float()
    x = x / x.sum(1, keepdim=True).clamp_min(1.0) * 1e4
    return torch.log1p(x)


class Annotator(nn.Module):
    def __init__(self, n_genes, n_types, width=192):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_genes, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, n_types),
        )

    def forward(self, x):
        return self.net(x)


def epochs(n, batch, rng):
    while True:
        order = rng.permutation(n)
        for i in range(0, n - batch + 1, batch):
            yield order[i : i + batch]


def fit(data, n_genes, n_types, seconds, batch=256):
    torch.manual_seed(1)
    net = Annotator(n_genes, n_types)
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    picks = epochs(len(data), batch, np.random.default_rng(2))
    durations, stop = [], time.perf_counter() + seconds
    while time.perf_counter() < stop:
        t0 = time.perf_counter()
        counts, labels = data.cells(next(picks))
        x, y = normalise(counts), torch.from_numpy(labels)
        loss = loss_fn(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        durations.append(time.perf_counter() - t0)
        if len(durations) % 50 == 0:
            print(f"step {len(durations):5d}  loss {loss.item():.3f}")
    return durations


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    n_genes, n_types = 2000, 12
    atlas = make_atlas(n_genes, 50_000, n_types)
    data = CellMatrix(*atlas) if a.better else CountMatrix(*atlas)
    durations = fit(data, n_genes, n_types, a.seconds)
    if a.times:
        with open(a.times, "w") as f:
            json.dump(durations, f)


if __name__ == "__main__":
    main()
