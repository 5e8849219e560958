"""Facies classification from wireline logs (GR, RHOB, NPHI, DT, RES) with a small residual net."""

import argparse
import json
import time

import numpy as np
import polars as pl
import torch
import torch.nn as nn

CURVES = ["GR", "RHOB", "NPHI", "DT", "RES"]
N_FACIES = 9
WIN = 256
REACH = 10


def load_wells(n_wells=30, depth=2500):
    rng = np.random.default_rng(8)
    frames = []
    for w in range(n_wells):
        facies = np.repeat(rng.integers(0, N_FACIES, depth // 25 + 1), 25)[:depth]
        cols = {"well": np.full(depth, w), "depth": 1500 + 0.15 * np.arange(depth), "facies": facies}
        for k, c in enumerate(CURVES):
            cols[c] = np.sin(facies * (k + 1) * 0.9) + 0.4 * rng.standard_normal(depth)
        frames.append(pl.DataFrame(cols))
    return pl.concat(frames)


class FaciesNet(nn.Module):
    """every sample is labelled from the curves within +-REACH samples"""

    def __init__(self, c=320):
        super().__init__()
        self.inp = nn.Linear(len(CURVES) * (2 * REACH + 1), c)
        self.mid = nn.Linear(c, c)
        self.norm = nn.LayerNorm(c)
        self.out = nn.Linear(c, N_FACIES)

    def forward(self, x):
        x = nn.functional.pad(x, (REACH, REACH))
        w = x.unfold(2, 2 * REACH + 1, 1).transpose(1, 2).flatten(2)
        h = torch.relu(self.inp(w))
        h = self.norm(h + torch.relu(self.mid(h)))
        return self.out(h).transpose(1, 2)


def as_tensors(df, single):
    values = df.select(CURVES).to_numpy()
    values = (values - values.mean(0)) / values.std(0)
    wells = df["well"].n_unique()
    X = torch.from_numpy(values).reshape(wells, -1, len(CURVES)).transpose(1, 2).contiguous()
    y = torch.from_numpy(df["facies"].to_numpy().copy()).reshape(wells, -1)
    if single:
        X = X.float()
    return X, y


def sample(X, y, n):
    w = torch.randint(0, X.shape[0], (n,)).tolist()
    s = torch.randint(0, X.shape[2] - WIN, (n,)).tolist()
    xb = torch.stack([X[i, :, j : j + WIN] for i, j in zip(w, s)])
    yb = torch.stack([y[i, j : j + WIN] for i, j in zip(w, s)])
    return xb, yb


if __name__ == "__main__":
    pa = argparse.ArgumentParser()
    pa.add_argument("--seconds", type=float, default=12)
    pa.add_argument("--better", action="store_true")
    pa.add_argument("--times")
    opt = pa.parse_args()

    torch.manual_seed(0)
    X, y = as_tensors(load_wells(), opt.better)
    net = FaciesNet().to(X.dtype)
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, fused=True)
    lossf = nn.CrossEntropyLoss()

    hist = []
    start = time.perf_counter()
    while True:
        t = time.perf_counter()
        xb, yb = sample(X, y, 24)
        logits = net(xb)
        loss = lossf(logits, yb)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        hist.append(time.perf_counter() - t)
        if len(hist) % 30 == 0:
            print(len(hist), "loss %.3f" % loss.item())
        if time.perf_counter() - start > opt.seconds:
            break

    if opt.times:
        with open(opt.times, "w") as fh:
            json.dump(hist, fh)
