"""Click-through model over parquet shards; every shard is one training batch."""

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

CATEGORICAL = ["site", "device", "hour", "campaign"]
NUMERIC = ["bid", "dwell", "age"]


def write_shards(folder, shards=16, rows=3000):
    rng = np.random.default_rng(1)
    paths = []
    for k in range(shards):
        table = {c: rng.integers(0, 500, rows) for c in CATEGORICAL}
        table |= {c: rng.standard_normal(rows).astype(np.float32) for c in NUMERIC}
        table["click"] = ((table["site"] % 7 == 0) | (table["bid"] > 1.2)).astype(np.int8)
        for j in range(18):
            table[f"debug_{j}"] = [f"trace-{v:x}" for v in rng.integers(0, 1 << 40, rows)]
        paths.append(os.path.join(folder, f"part-{k:03d}.parquet"))
        pq.write_table(pa.table(table), paths[-1], compression="zstd")
    return paths


class ShardReader:
    def __init__(self, paths, columns=None, seed=0):
        self.paths, self.columns = paths, columns
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for k in self.rng.permutation(len(self.paths)):
            yield self.tensors(pq.read_table(self.paths[k], columns=self.columns))

    @staticmethod
    def tensors(table):
        def col(c):
            return torch.from_numpy(table[c].to_numpy())

        cats = torch.stack([col(c) for c in CATEGORICAL], 1)
        nums = torch.stack([col(c) for c in NUMERIC], 1)
        return cats, nums, col("click").float()


class CtrNet(nn.Module):
    def __init__(self, d=16, width=128):
        super().__init__()
        self.emb = nn.Embedding(500 * len(CATEGORICAL), d)
        self.register_buffer("offset", torch.arange(len(CATEGORICAL)) * 500)
        self.mlp = nn.Sequential(
            nn.Linear(d * len(CATEGORICAL) + len(NUMERIC), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, cats, nums):
        e = self.emb(cats + self.offset).flatten(1)
        return self.mlp(torch.cat([e, nums], 1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    pa.set_cpu_count(2)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(folder)
        reader = ShardReader(paths, CATEGORICAL + NUMERIC + ["click"] if args.better else None)
        net = CtrNet()
        opt = torch.optim.Adam(net.parameters(), lr=2e-3)
        times = []
        begin = last = time.perf_counter()
        while last - begin < args.seconds:
            for cats, nums, click in reader:
                loss = nn.functional.binary_cross_entropy_with_logits(net(cats, nums), click)
                opt.zero_grad()
                loss.backward()
                opt.step()
                now = time.perf_counter()
                times.append(now - last)
                last = now
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
