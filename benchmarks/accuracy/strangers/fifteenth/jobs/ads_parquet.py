"""Click model trained straight from parquet shards (row group = one minibatch)."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

COLS = [f"num_{i}" for i in range(13)]
CATS = [f"cat_{i}" for i in range(6)]


def dump_shard(path, groups=20, rows=2048):
    rng = np.random.default_rng(5)
    n = groups * rows
    cols = {c: rng.gamma(1.0, 2.0, n).astype(np.float32) for c in COLS}
    cols |= {c: rng.integers(0, 1000, n) for c in CATS}
    cols["click"] = (rng.random(n) < 0.2).astype(np.float32)
    pq.write_table(pa.table(cols), path, row_group_size=rows)


class Shard:
    def __init__(self, path, fast):
        self.file = pq.ParquetFile(path)
        self.fast = fast
        self.order = np.random.default_rng(0)

    def column(self, table, name, dtype):
        col = table.column(name)
        if self.fast:
            return torch.from_numpy(col.to_numpy().copy()).to(dtype)
        return torch.tensor(col.to_pylist(), dtype=dtype)

    def __iter__(self):
        while True:
            for g in self.order.permutation(self.file.num_row_groups):
                t = self.file.read_row_group(int(g))
                num = torch.stack([self.column(t, c, torch.float32) for c in COLS], 1)
                cat = torch.stack([self.column(t, c, torch.long) for c in CATS], 1)
                yield num, cat, self.column(t, "click", torch.float32)


class ClickNet(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(1000, dim) for _ in CATS])
        self.deep = nn.Sequential(
            nn.Linear(len(COLS) + dim * len(CATS), 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, num, cat):
        e = [emb(cat[:, i]) for i, emb in enumerate(self.emb)]
        return self.deep(torch.cat([torch.log1p(num), *e], 1)).squeeze(1)


def train(path, opts):
    model = ClickNet()
    optim = torch.optim.Adagrad(model.parameters(), lr=0.01)
    loss_fn = nn.BCEWithLogitsLoss()
    stream = iter(Shard(path, opts.better))
    durations, t0 = [], time.perf_counter()
    while time.perf_counter() - t0 < opts.seconds:
        s = time.perf_counter()
        num, cat, y = next(stream)
        loss = loss_fn(model(num, cat), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        durations.append(time.perf_counter() - s)
    print("logloss", round(loss.item(), 4))
    return durations


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    opts = p.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as d:
        shard = os.path.join(d, "part-000.parquet")
        dump_shard(shard)
        durations = train(shard, opts)
    if opts.times:
        with open(opts.times, "w") as fh:
            json.dump(durations, fh)
