"""Customer churn classifier on synthetic subscription records."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = [f"usage_{i}" for i in range(28)]
PLANS = 12


class ChurnRecords(Dataset):
    """One record per customer, a dict of named features."""

    def __init__(self, n=20000, seed=0):
        rng = np.random.default_rng(seed)
        self.values = rng.gamma(2.0, 1.0, (n, len(COLUMNS))).astype(np.float32)
        self.plan = rng.integers(0, PLANS, n)
        score = self.values[:, :5].sum(1) - 2.0 * (self.plan % 3) + rng.normal(0, 1, n)
        self.label = (score > np.median(score)).astype(np.float32)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        sample = {c: torch.tensor(v) for c, v in zip(COLUMNS, self.values[i])}
        sample["plan"] = torch.tensor(self.plan[i])
        sample["label"] = torch.tensor(self.label[i])
        return sample


class ChurnTable(ChurnRecords):
    def __getitem__(self, i):
        return self.values[i], self.plan[i], self.label[i]


class ChurnNet(nn.Module):
    def __init__(self, hidden=1024):
        super().__init__()
        self.plan = nn.Embedding(PLANS, 16)
        self.body = nn.Sequential(
            nn.BatchNorm1d(len(COLUMNS) + 16),
            nn.Linear(len(COLUMNS) + 16, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x, plan):
        return self.body(torch.cat([x, self.plan(plan)], 1)).squeeze(1)


def unpack(batch):
    if isinstance(batch, dict):
        x = torch.stack([batch[c] for c in COLUMNS], 1)
        return x, batch["plan"], batch["label"]
    return batch


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=20)
    ap.add_argument("--batch-size", type=int, default=256)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=15)
    args = ap.parse_args()

    torch.manual_seed(0)
    data = ChurnTable() if args.better else ChurnRecords()
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    net = ChurnNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    loss_fn = nn.BCEWithLogitsLoss()

    times, start = [], time.perf_counter()
    last = start
    for epoch in range(args.epochs):
        running = 0.0
        for step, batch in enumerate(loader):
            x, plan, y = unpack(batch)
            loss = loss_fn(net(x, plan), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start > args.seconds:
                break
        print(f"epoch {epoch} loss {running / (step + 1):.4f}")
        if time.perf_counter() - start > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
