"""Single-cell expression classifier reading .npz shards (genes x cells, counts)."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GENES = 600
PER_SHARD = 64


def write_shards(folder, n_shards=24):
    rng = np.random.default_rng(10)
    profile = rng.gamma(0.4, 2.0, (9, GENES))
    paths = []
    for k in range(n_shards):
        label = rng.integers(0, 9, PER_SHARD)
        counts = rng.poisson(profile[label]).astype(np.int32)
        path = os.path.join(folder, f"cells_{k:03d}.npz")
        np.savez_compressed(path, counts=counts, label=label)
        paths.append(path)
    return paths


class Cells(Dataset):
    def __init__(self, paths, in_memory):
        self.files = [np.load(p) for p in paths]
        self.loaded = [{k: f[k] for k in f.files} for f in self.files] if in_memory else None

    def __len__(self):
        return len(self.files) * PER_SHARD

    def __getitem__(self, i):
        s, r = divmod(i, PER_SHARD)
        shard = self.loaded[s] if self.loaded else self.files[s]
        x = shard["counts"][r].astype(np.float32)
        y = int(shard["label"][r])
        x = np.log1p(x / max(x.sum(), 1) * 1e4)
        return torch.from_numpy(x), y


class CellNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(GENES, 1024),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(1024, 1024),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            nn.Linear(1024, 9),
        )

    def forward(self, x):
        return self.net(x)


def train(args, folder):
    torch.manual_seed(10)
    data = Cells(write_shards(folder), args.better)
    loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    model = CellNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lossf = nn.CrossEntropyLoss()
    times = []
    begin = last = time.perf_counter()
    epoch = 0
    while True:
        hits = n = 0
        for x, y in loader:
            out = model(x)
            loss = lossf(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += (out.argmax(1) == y).sum().item()
            n += len(y)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - begin > args.seconds:
                print(f"stop in epoch {epoch}, acc {hits / n:.3f}")
                return times
        epoch += 1


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = train(args, folder)
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(steps, fh)
