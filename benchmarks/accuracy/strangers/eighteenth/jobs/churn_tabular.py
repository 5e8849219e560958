"""Customer churn: MLP with categorical embeddings on an in-memory table."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--times", default=None)
parser.add_argument("--better", action="store_true")
args = parser.parse_args()

BATCH = 1024
CARDINALITIES = [12, 50, 7, 200, 31, 24]


class ChurnDataset(Dataset):
    def __init__(self, numeric, categorical, target):
        self.numeric = numeric
        self.categorical = categorical
        self.target = target

    def __len__(self):
        return len(self.target)

    def __getitem__(self, i):
        return (
            torch.tensor(self.numeric[i], dtype=torch.float32),
            torch.tensor(self.categorical[i], dtype=torch.long),
            torch.tensor(self.target[i], dtype=torch.float32),
        )


class ArrayBatches:
    def __init__(self, numeric, categorical, target, batch_size):
        self.tensors = (
            torch.from_numpy(numeric).float(),
            torch.from_numpy(categorical).long(),
            torch.from_numpy(target).float(),
        )
        self.batch_size = batch_size

    def __iter__(self):
        order = torch.randperm(len(self.tensors[0]))
        for part in order.split(self.batch_size):
            if len(part) == self.batch_size:
                yield tuple(t[part] for t in self.tensors)


class ChurnNet(nn.Module):
    def __init__(self, n_numeric):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(c, 8) for c in CARDINALITIES)
        self.body = nn.Sequential(
            nn.Linear(n_numeric + 8 * len(CARDINALITIES), 256),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )

    def forward(self, numeric, categorical):
        parts = [e(categorical[:, i]) for i, e in enumerate(self.embeddings)]
        return self.body(torch.cat([numeric, *parts], dim=1)).squeeze(1)


rng = np.random.default_rng(0)
rows = 60_000
numeric = rng.normal(size=(rows, 24)).astype(np.float32)
categorical = np.stack([rng.integers(0, c, rows) for c in CARDINALITIES], axis=1)
target = (numeric[:, 0] + 0.3 * rng.normal(size=rows) > 0).astype(np.float32)

if args.better:
    loader = ArrayBatches(numeric, categorical, target, BATCH)
else:
    loader = DataLoader(ChurnDataset(numeric, categorical, target), batch_size=BATCH, shuffle=True, drop_last=True)

torch.manual_seed(0)
model = ChurnNet(numeric.shape[1])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

durations = []
start = mark = time.perf_counter()
epoch = 0
while time.perf_counter() - start < args.seconds:
    running = 0.0
    for x_num, x_cat, y in loader:
        loss = F.binary_cross_entropy_with_logits(model(x_num, x_cat), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running += loss.item()
        now = time.perf_counter()
        durations.append(now - mark)
        mark = now
        if now - start >= args.seconds:
            break
    epoch += 1
print(f"epochs {epoch}, last loss {loss.item():.4f}")

if args.times:
    json.dump(durations, open(args.times, "w"))
