"""Churn model for the subscriber table: numeric and categorical columns, weekly refit."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CARDINALITIES = [12, 50, 7, 31, 200]
NUMERIC = 24


def subscriber_table(rows, seed=0):
    rng = np.random.default_rng(seed)
    numeric = rng.normal(size=(rows, NUMERIC)).astype(np.float32)
    numeric[:, ::4] = np.exp(numeric[:, ::4])
    category = np.stack([rng.integers(0, c, rows) for c in CARDINALITIES], 1)
    score = numeric[:, 1] - 0.5 * numeric[:, 5] + 0.3 * (category[:, 2] == 3) + rng.logistic(size=rows)
    return numeric, category, (score > 0.8).astype(np.float32)


class Subscribers(Dataset):
    def __init__(self, numeric, category, churned):
        mean, std = numeric.mean(0), numeric.std(0)
        self.numeric = torch.from_numpy((numeric - mean) / std)
        self.category = torch.from_numpy(category)
        self.churned = torch.from_numpy(churned)

    def __len__(self):
        return len(self.churned)

    def __getitem__(self, i):
        return self.numeric[i], self.category[i], self.churned[i]


class ChurnNet(nn.Module):
    def __init__(self, width=256, dropout=0.1):
        super().__init__()
        sizes = [min(16, (c + 1) // 2) for c in CARDINALITIES]
        self.embeddings = nn.ModuleList(nn.Embedding(c, s) for c, s in zip(CARDINALITIES, sizes))
        self.body = nn.Sequential(
            nn.Linear(NUMERIC + sum(sizes), width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
        )

    def forward(self, numeric, category):
        parts = [e(c) for e, c in zip(self.embeddings, category.unbind(1))]
        return self.body(torch.cat([numeric, *parts], 1)).squeeze(1)


def make_loader(data, size, by_batch=False):
    if by_batch:
        return DataLoader(data, sampler=BatchSampler(RandomSampler(data), size, drop_last=True), batch_size=None)
    return DataLoader(data, batch_size=size, shuffle=True, drop_last=True)


@torch.inference_mode()
def auc(model, data):
    model.eval()
    score = model(data.numeric, data.category)
    rank = torch.empty_like(score)
    rank[score.argsort()] = torch.arange(1, len(score) + 1, dtype=score.dtype)
    pos = data.churned.sum()
    value = (rank[data.churned > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(score) - pos))
    model.train()
    return value.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=200_000)
    args = parser.parse_args()
    torch.manual_seed(1)

    numeric, category, churned = subscriber_table(args.rows + 8000)
    train = Subscribers(numeric[8000:], category[8000:], churned[8000:])
    valid = Subscribers(numeric[:8000], category[:8000], churned[:8000])
    loader = make_loader(train, args.batch_size, args.better)
    model = ChurnNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4, fused=True)
    criterion = nn.BCEWithLogitsLoss()

    steps = []
    start = time.perf_counter()
    epoch = 0
    while time.perf_counter() - start < args.seconds:
        tick = time.perf_counter()
        for x, c, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x, c), y)
            loss.backward()
            optimizer.step()
            tock = time.perf_counter()
            steps.append(tock - tick)
            tick = tock
            if tock - start > args.seconds:
                break
        epoch += 1
        print(f"epoch {epoch}  auc {auc(model, valid):.4f}")
    if args.times:
        json.dump(steps, open(args.times, "w"))


if __name__ == "__main__":
    main()
