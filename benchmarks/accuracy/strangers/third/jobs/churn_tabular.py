#!/usr/bin/env python
"""Churn prediction with categorical embeddings, data held in a polars frame."""

import argparse
import json
import time

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CATS = {"region": 20, "plan": 6, "device": 40, "agent": 300}
NUMS = ["age", "tenure", "spend", "calls", "tickets", "usage"]


def load_frame(n=60_000):
    r = np.random.default_rng(3)
    cols = {c: r.integers(0, k, n) for c, k in CATS.items()}
    cols |= {c: r.normal(size=n).astype(np.float32) for c in NUMS}
    cols["churn"] = (cols["spend"] - cols["tenure"] + r.normal(size=n) > 0.5).astype(np.int64)
    return pl.DataFrame(cols)


class ChurnData(Dataset):
    def __init__(self, df):
        self.df = df

    def __len__(self):
        return self.df.height

    def __getitem__(self, i):
        row = self.df.row(i, named=True)
        cat = torch.tensor([row[c] for c in CATS])
        num = torch.tensor([row[c] for c in NUMS])
        return cat, num, torch.tensor(float(row["churn"]))


class ChurnTensors(Dataset):
    def __init__(self, df):
        self.cat = torch.from_numpy(df.select(list(CATS)).to_numpy().copy())
        self.num = torch.from_numpy(df.select(NUMS).to_numpy().copy())
        self.y = torch.from_numpy(df["churn"].to_numpy().copy()).float()

    def __len__(self):
        return len(self.y)

    def __getitems__(self, idx):
        idx = torch.tensor(idx)
        return self.cat[idx], self.num[idx], self.y[idx]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embs = nn.ModuleList(nn.Embedding(k, 16) for k in CATS.values())
        self.net = nn.Sequential(
            nn.Linear(16 * len(CATS) + len(NUMS), 320),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(320, 320),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(320, 320),
            nn.ReLU(),
            nn.Linear(320, 1),
        )

    def forward(self, cat, num):
        e = [emb(cat[:, k]) for k, emb in enumerate(self.embs)]
        return self.net(torch.cat(e + [num], 1)).squeeze(1)


def run(args):
    df = load_frame()
    if args.better:
        loader = DataLoader(ChurnTensors(df), batch_size=512, shuffle=True, collate_fn=lambda b: b)
    else:
        loader = DataLoader(ChurnData(df), batch_size=512, shuffle=True)
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    crit = nn.BCEWithLogitsLoss()
    times = []
    stop = time.perf_counter() + args.seconds
    epoch = 0
    while True:
        epoch += 1
        it = iter(loader)
        while True:
            t = time.perf_counter()
            batch = next(it, None)
            if batch is None:
                break
            cat, num, y = batch
            loss = crit(model(cat, num), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            times.append(time.perf_counter() - t)
            if time.perf_counter() > stop:
                print(f"epoch {epoch}: loss {loss.item():.3f}")
                return times
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    result = run(a)
    if a.times:
        with open(a.times, "w") as fh:
            json.dump(result, fh)
