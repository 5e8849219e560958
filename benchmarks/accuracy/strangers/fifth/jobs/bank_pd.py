# PD model (probability of default), retail book. numpy in, torch net, monthly retrain.
import json
import time
import argparse
import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=12)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", type=str)
args = parser.parse_args()

N = 40_000
rng = np.random.RandomState(42)
torch.manual_seed(42)


def load_book():
    balance = rng.lognormal(8, 1.2, size=(N, 12))
    util = rng.beta(2, 3, size=(N, 12))
    arrears = rng.poisson(0.1, size=(N, 12)).astype(float)
    income = rng.lognormal(7.8, 0.5, size=(N, 1))
    age = rng.uniform(18, 80, size=(N, 1))
    bureau = rng.normal(size=(N, 26))
    X = np.concatenate([np.log1p(balance), util, arrears, np.log(income), age / 80, bureau], axis=1)
    X = (X - X.mean(0)) / X.std(0)
    z = 1.4 * arrears.sum(1) + 2.0 * util.mean(1) + 0.4 * bureau[:, 0] - 4.2
    y = (rng.uniform(size=N) < 1 / (1 + np.exp(-z))).astype(float)
    return X, y


X, y = load_book()
X_train, y_train = X[:32_000], y[:32_000]
X_test, y_test = X[32_000:], y[32_000:]

dtype = torch.float32 if args.better else torch.float64
Xt = torch.tensor(X_train, dtype=dtype)
yt = torch.tensor(y_train, dtype=dtype).unsqueeze(1)


class PD(nn.Module):
    def __init__(self, n_in, width=512, depth=3):
        super().__init__()
        self.first = nn.Linear(n_in, width)
        self.mids = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.last = nn.Linear(width, 1)
        self.act = nn.ReLU()

    def forward(self, x):
        h = self.act(self.first(x))
        for m in self.mids:
            h = h + self.act(m(h))
        return self.last(h)


model = PD(X.shape[1]).to(dtype)
weight = torch.tensor([(1 - y_train.mean()) / y_train.mean()], dtype=dtype)
criterion = nn.BCEWithLogitsLoss(pos_weight=weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True)


def auc(score, label):
    order = np.argsort(score)
    rank = np.empty(len(score))
    rank[order] = np.arange(1, len(score) + 1)
    pos = label.sum()
    return (rank[label == 1].sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))


BATCH = 1024
step_times = []
t_start = time.perf_counter()
finished = False
epoch = 0
while not finished:
    perm = torch.randperm(len(Xt))
    for i in range(0, len(Xt), BATCH):
        t = time.perf_counter()
        idx = perm[i : i + BATCH]
        out = model(Xt[idx])
        loss = criterion(out, yt[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        t2 = time.perf_counter()
        step_times.append(t2 - t)
        if t2 - t_start > args.seconds:
            finished = True
            break
    epoch += 1
    print("epoch", epoch, "bce", loss.item())

with torch.no_grad():
    s = model(torch.tensor(X_test, dtype=dtype)).squeeze(1).numpy()
a = auc(s, y_test)
print("test auc %.4f gini %.4f" % (a, 2 * a - 1))
if args.times:
    with open(args.times, "w") as f:
        json.dump(step_times, f)
