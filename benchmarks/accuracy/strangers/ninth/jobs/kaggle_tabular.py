# tabular comp, fold 0 - MLP baseline
import argparse
import json
import random
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SEED = 42
BS = 1024
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times", default=None)
args = ap.parse_args()

N, F = 200_000, 40
X = np.random.randn(N, F).astype(np.float32)
w = np.random.randn(F).astype(np.float32)
y = (X @ w + 0.5 * np.random.randn(N) > 0).astype(np.float32)


class TrainDataset(Dataset):
    def __init__(self, X, y):
        self.X = X
        self.y = y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return {
            "x": torch.tensor(self.X[i], dtype=torch.float),
            "y": torch.tensor(self.y[i], dtype=torch.float),
        }


class TableBatches:
    def __init__(self, X, y, bs):
        self.X, self.y, self.bs = torch.from_numpy(X), torch.from_numpy(y), bs

    def __iter__(self):
        perm = torch.randperm(len(self.X))
        for idx in perm.split(self.bs):
            yield {"x": self.X[idx], "y": self.y[idx]}


if args.better:
    loader = TableBatches(X, y, BS)
else:
    loader = DataLoader(TrainDataset(X, y), batch_size=BS, shuffle=True)

model = nn.Sequential(
    nn.BatchNorm1d(F),
    nn.Linear(F, 256),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(256, 256),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(256, 128),
    nn.ReLU(),
    nn.Linear(128, 1),
)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
crit = nn.BCEWithLogitsLoss()

times = []
start = time.perf_counter()
done = False
epoch = 0
while not done:
    running = 0.0
    t = time.perf_counter()
    for k, batch in enumerate(loader):
        out = model(batch["x"]).squeeze(1)
        loss = crit(out, batch["y"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
        now = time.perf_counter()
        times.append(now - t)
        t = now
        if now - start > args.seconds:
            done = True
            break
    epoch += 1
    print(f"epoch {epoch} loss {running / (k + 1):.4f}")

if args.times:
    json.dump(times, open(args.times, "w"))
