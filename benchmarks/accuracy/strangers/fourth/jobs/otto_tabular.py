# Converted from my notebook (tabular, 9 classes, 93 count features)
import argparse, json, time
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=12.0)
p.add_argument("--better", action="store_true")
p.add_argument("--times", default="")
cfg = p.parse_args()

SEED = 42
np.random.seed(SEED)
torch.manual_seed(SEED)

# ---- "train.csv"
N, D, K = 61_878, 93, 9
X = np.random.poisson(0.4, size=(N, D)).astype("float32")
W = np.random.randn(D, K).astype("float32")
y = (X @ W + np.random.gumbel(size=(N, K))).argmax(1)
X = np.log1p(X)

# ---- split
perm = np.random.permutation(N)
tr, va = perm[:55_000], perm[55_000:]
Xtr, ytr = torch.from_numpy(X[tr]), torch.from_numpy(y[tr])
Xva, yva = torch.from_numpy(X[va]), torch.from_numpy(y[va])
BS = 1024


class TensorBatches:
    def __init__(self, x, y, bs):
        self.x, self.y, self.bs = x, y, bs

    def __iter__(self):
        for ix in torch.randperm(len(self.x)).split(self.bs):
            yield self.x[ix], self.y[ix]


if cfg.better:
    train_dl = TensorBatches(Xtr, ytr, BS)
else:
    train_dl = DataLoader(TensorDataset(Xtr, ytr), batch_size=BS, shuffle=True)


class Block(nn.Module):
    def __init__(self, i, o, drop):
        super().__init__()
        self.fc = nn.Linear(i, o)
        self.bn = nn.BatchNorm1d(o)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.act(self.bn(self.fc(x))))


model = nn.Sequential(Block(D, 128, 0.2), Block(128, 64, 0.2), nn.Linear(64, K))
opt = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-5, fused=True)
crit = nn.CrossEntropyLoss(label_smoothing=0.05)

times = []
start = time.time()
epoch = 0
stop = False
while not stop:
    model.train()
    tic = time.perf_counter()
    total, nb = 0.0, 0
    for xb, yb in train_dl:
        opt.zero_grad(set_to_none=True)
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        total += loss.item()
        nb += 1
        toc = time.perf_counter()
        times.append(toc - tic)
        tic = toc
        if time.time() - start > cfg.seconds:
            stop = True
            break
    epoch += 1
    print(f"epoch {epoch}: train logloss {total / nb:.4f}")

model.eval()
with torch.no_grad():
    print("valid logloss", round(nn.functional.cross_entropy(model(Xva), yva).item(), 4))

if cfg.times:
    json.dump(times, open(cfg.times, "w"))
