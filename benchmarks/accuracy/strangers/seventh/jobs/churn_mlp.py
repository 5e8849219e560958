# churn prediction on a table that fits in memory
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=12)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", type=str)
args = parser.parse_args()

torch.manual_seed(42)
rng = np.random.default_rng(42)
BATCH = 1024
N = 120_000

# numeric columns
tenure = rng.integers(0, 72, N)
monthly = rng.normal(65, 30, N)
support_calls = rng.poisson(1.2, N)
numeric = np.stack([tenure, monthly, tenure * monthly, support_calls], 1)
usage = rng.gamma(2.0, 3.0, (N, 24))
numeric = np.concatenate([numeric, usage], 1)
numeric = (numeric - numeric.mean(0)) / numeric.std(0)

# categorical columns
contract = np.eye(3)[rng.integers(0, 3, N)]
payment = np.eye(5)[rng.integers(0, 5, N)]
X = np.concatenate([numeric, contract, payment], 1).astype(np.float32)
score = -0.04 * tenure + 0.5 * support_calls + 1.2 * contract[:, 0]
y = (score + rng.logistic(size=N) > 0).astype(np.float32)

X, y = torch.from_numpy(X), torch.from_numpy(y)
n_train = int(0.9 * N)
X_train, y_train, X_val, y_val = X[:n_train], y[:n_train], X[n_train:], y[n_train:]

loader = DataLoader(TensorDataset(X_train, y_train), batch_size=BATCH, shuffle=True, drop_last=True)


def batches():
    if args.better:
        for idx in torch.randperm(n_train).split(BATCH)[:-1]:
            yield X_train[idx], y_train[idx]
    else:
        yield from loader


model = nn.Sequential(
    nn.Linear(X.shape[1], 384),
    nn.ReLU(),
    nn.Linear(384, 384),
    nn.ReLU(),
    nn.Linear(384, 1),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
criterion = nn.BCEWithLogitsLoss()

times = []
start = time.perf_counter()
tick = start
epoch = 0
running = True
while running:
    model.train()
    for xb, yb in batches():
        logits = model(xb).squeeze(1)
        loss = criterion(logits, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - tick)
        tick = now
        if now - start > args.seconds:
            running = False
            break
    epoch += 1
    print("epoch", epoch, "last loss", round(loss.item(), 4))

model.eval()
with torch.no_grad():
    pred = model(X_val).squeeze(1) > 0
    print("val accuracy", (pred == (y_val > 0)).float().mean().item())

if args.times:
    with open(args.times, "w") as fh:
        json.dump(times, fh)
