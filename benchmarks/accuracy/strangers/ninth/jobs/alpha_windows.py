# cross-sectional return forecast from rolling windows of factor values
import argparse
import json
import time

import numpy as np
import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12.0)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()

rng = np.random.default_rng(1987)
torch.manual_seed(1987)

T, ASSETS, FACTORS, WIN, BATCH = 2500, 400, 12, 20, 512
fac = rng.standard_normal((T, ASSETS, FACTORS), dtype=np.float32)
beta = rng.standard_normal(FACTORS).astype(np.float32) * 0.02
ret = fac @ beta + 0.3 * rng.standard_normal((T, ASSETS), dtype=np.float32)
# every (day, asset) pair with a full window behind it is a sample
days, names = np.meshgrid(np.arange(WIN, T - 1), np.arange(ASSETS), indexing="ij")
days, names = days.ravel(), names.ravel()
n_samples = len(days)
print("samples:", n_samples)


def draw(n):
    if args.better:
        pick = rng.integers(0, n_samples, n)
    else:
        pick = np.random.choice(n_samples, n, replace=False)
    return days[pick], names[pick]


def window(d, a):
    rows = d[:, None] - np.arange(WIN)[::-1]
    x = fac[rows, a[:, None]]
    return torch.from_numpy(x), torch.from_numpy(ret[d + 1, a])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(FACTORS, 64, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x):
        _, h = self.gru(x)
        return self.head(h[-1]).squeeze(-1)


def ic(pred, target):
    p, t = pred - pred.mean(), target - target.mean()
    return (p * t).sum() / (p.norm() * t.norm() + 1e-9)


np.random.seed(1987)
model = Forecaster()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
hist = []
took = []
t0 = time.perf_counter()
while True:
    a = time.perf_counter()
    if a - t0 > args.seconds:
        break
    x, y = window(*draw(BATCH))
    pred = model(x)
    loss = nn.functional.huber_loss(pred, y) - 0.1 * ic(pred, y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    hist.append(loss.item())
    took.append(time.perf_counter() - a)

print("steps", len(hist), "mean loss of the last 50:", np.mean(hist[-50:]).round(4))
if args.times:
    with open(args.times, "w") as fh:
        json.dump(took, fh)
