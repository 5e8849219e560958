"""Credit default prediction on tabular data: embeddings for the categories, an MLP on top."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

torch.manual_seed(42)
rng = np.random.default_rng(42)
CARDS = [12, 50, 7, 300, 24, 5]
N_NUM = 28
BATCH_SIZE = 1024


def load_frame(n=120_000):
    num = rng.normal(size=(n, N_NUM)).astype(np.float32)
    cat = np.stack([rng.integers(0, c, n) for c in CARDS], axis=1)
    logit = num[:, 0] - 0.7 * num[:, 3] * (cat[:, 0] > 6) + 0.3 * (cat[:, 2] == 1) - 1.0
    y = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return num, cat, y


class CreditDataset(Dataset):
    def __init__(self, num, cat, y):
        self.num = torch.from_numpy(num)
        self.cat = torch.from_numpy(cat)
        self.y = torch.from_numpy(y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return self.num[idx], self.cat[idx], self.y[idx]


class BatchIterator:
    def __init__(self, dataset, batch_size):
        self.dataset, self.batch_size = dataset, batch_size

    def __iter__(self):
        order = torch.randperm(len(self.dataset))
        for idx in order.split(self.batch_size):
            yield self.dataset[idx]


class TabularNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(c, min(16, (c + 1) // 2)) for c in CARDS)
        d = sum(e.embedding_dim for e in self.emb) + N_NUM
        self.net = nn.Sequential(
            nn.Linear(d, width),
            nn.ReLU(),
            nn.BatchNorm1d(width),
            nn.Dropout(0.2),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.BatchNorm1d(width // 2),
            nn.Dropout(0.2),
            nn.Linear(width // 2, 1),
        )

    def forward(self, num, cat):
        parts = [emb(cat[:, i]) for i, emb in enumerate(self.emb)]
        return self.net(torch.cat(parts + [num], dim=1)).squeeze(1)


train_ds = CreditDataset(*load_frame())
if args.better:
    train_loader = BatchIterator(train_ds, BATCH_SIZE)
else:
    train_loader = DataLoader(train_ds, batch_size=BATCH_SIZE, shuffle=True)

model = TabularNet()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

times, epoch, stop = [], 0, False
start = last = time.perf_counter()
while not stop:
    model.train()
    total, seen = 0.0, 0
    for num, cat, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(num, cat), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        seen += len(y)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            stop = True
            break
    epoch += 1
    print(f"epoch {epoch} loss {total / seen:.4f}")

if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
