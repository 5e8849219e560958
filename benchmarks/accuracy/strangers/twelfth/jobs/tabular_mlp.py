"""Credit default model on a table of numeric and categorical columns."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

N_ROWS, N_NUM, CARDS = 120_000, 40, [12, 50, 7, 300]
BATCH = 1024


def load_table(seed=3):
    rng = np.random.default_rng(seed)
    num = rng.standard_normal((N_ROWS, N_NUM)).astype(np.float32)
    cat = np.stack([rng.integers(0, c, N_ROWS) for c in CARDS], axis=1)
    score = num[:, :5].sum(1) + (cat[:, 0] - 6) * 0.3 + rng.standard_normal(N_ROWS)
    return torch.from_numpy(num), torch.from_numpy(cat), torch.from_numpy((score > 0).astype(np.float32))


class CreditRows(Dataset):
    def __init__(self, num, cat, target):
        self.num, self.cat, self.target = num, cat, target

    def __len__(self):
        return len(self.target)

    def __getitem__(self, i):
        return self.num[i], self.cat[i], self.target[i]


class BlockLoader:
    def __init__(self, rows, batch_size):
        self.rows, self.batch_size = rows, batch_size

    def __iter__(self):
        order = torch.randperm(len(self.rows))
        for s in range(0, len(order) - self.batch_size + 1, self.batch_size):
            yield self.rows[order[s : s + self.batch_size]]


class TabularNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(c, min(16, c // 2 + 1)) for c in CARDS)
        width = N_NUM + sum(e.embedding_dim for e in self.emb)
        self.body = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.Linear(width, 256),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(256, 1),
        )

    def forward(self, num, cat):
        parts = [num] + [e(cat[:, k]) for k, e in enumerate(self.emb)]
        return self.body(torch.cat(parts, dim=1)).squeeze(1)


def get_loader(rows, better):
    if better:
        return BlockLoader(rows, BATCH)
    return DataLoader(rows, batch_size=BATCH, shuffle=True, drop_last=True)


def train(model, loader, seconds):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    crit = nn.BCEWithLogitsLoss()
    durations = []
    begin = prev = time.perf_counter()
    step, running = 0, torch.zeros(())
    while True:
        for num, cat, y in loader:
            loss = crit(model(num, cat), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.detach()
            step += 1
            if step % 100 == 0:
                print(f"step {step}: {running.item() / 100:.4f}")
                running.zero_()
            t = time.perf_counter()
            durations.append(t - prev)
            prev = t
            if t - begin >= seconds:
                return durations


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", default=None)
    return p.parse_args()


if __name__ == "__main__":
    args = parse()
    torch.manual_seed(0)
    rows = CreditRows(*load_table())
    result = train(TabularNet(), get_loader(rows, args.better), args.seconds)
    if args.times:
        np.savetxt(args.times, result, fmt="%.6f")
