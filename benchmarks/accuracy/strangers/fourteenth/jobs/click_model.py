import argparse
import json
from time import perf_counter

import numpy as np
import torch
import torch.nn as nn


class ClickModel(nn.Module):
    """Factorization-style CTR model over hashed categorical fields."""

    def __init__(self, buckets, fields, dim, sparse):
        super().__init__()
        self.emb = nn.Embedding(buckets, dim, sparse=sparse)
        self.bias = nn.Embedding(buckets, 1, sparse=sparse)
        nn.init.normal_(self.emb.weight, std=0.01)
        nn.init.zeros_(self.bias.weight)
        self.deep = nn.Sequential(
            nn.Linear(fields * dim, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, ids):
        e = self.emb(ids)
        linear = self.bias(ids).sum((1, 2))
        cross = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        return linear + cross + self.deep(e.flatten(1)).squeeze(1)


class Impressions:
    def __init__(self, n, buckets, fields, seed=0):
        rng = np.random.default_rng(seed)
        raw = rng.zipf(1.2, size=(n, fields)) + np.arange(fields) * 7919
        self.ids = torch.from_numpy(raw % buckets)
        self.clicks = torch.from_numpy((rng.random(n) < 0.1).astype(np.float32))

    def batches(self, size):
        while True:
            order = torch.randperm(len(self.ids))
            for part in order.split(size):
                yield self.ids[part], self.clicks[part]


def run(opts):
    torch.manual_seed(0)
    data = Impressions(60_000, opts.buckets, 12)
    model = ClickModel(opts.buckets, 12, 16, sparse=opts.better)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    bce = nn.BCEWithLogitsLoss()
    took, smooth = [], None
    started = mark = perf_counter()
    for ids, clicks in data.batches(512):
        loss = bce(model(ids), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
        now = perf_counter()
        took.append(now - mark)
        mark = now
        if now - started >= opts.seconds:
            break
    print(f"logloss {smooth:.4f} over {len(took)} batches")
    return took


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="CTR training")
    parser.add_argument("--buckets", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    options = parser.parse_args()
    result = run(options)
    if options.times:
        with open(options.times, "w") as handle:
            json.dump(result, handle)
