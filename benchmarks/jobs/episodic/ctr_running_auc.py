"""Click-through model on 8 categorical fields; the progress line carries the epoch's ROC AUC so far."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FIELDS, VOCAB, DIM, BATCH, EPOCH = 8, 2000, 16, 1024, 400

torch.manual_seed(27)


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(FIELDS * VOCAB, DIM)
        self.lin = nn.Embedding(FIELDS * VOCAB, 1)
        nn.init.normal_(self.emb.weight, std=0.05)
        nn.init.zeros_(self.lin.weight)
        self.register_buffer("base", torch.arange(FIELDS) * VOCAB)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * DIM, 384), nn.ReLU(), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, cats):
        ids = cats + self.base
        e = self.emb(ids)
        total = e.sum(1)
        fm = 0.5 * (total * total - (e * e).sum(1)).sum(1)
        return self.lin(ids).sum((1, 2)) + fm + self.deep(e.flatten(1)).squeeze(1)


class EpochAUC:
    """Area under the ROC curve over everything since reset()."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, logits, y):
        self.scores.append(logits.detach().sigmoid().numpy())
        self.labels.append(y.numpy())

    def compute(self):
        s, y = np.concatenate(self.scores), np.concatenate(self.labels)
        y = y[np.argsort(s, kind="mergesort")[::-1]]
        tps, fps = np.cumsum(y), np.cumsum(1 - y)
        if tps[-1] == 0 or fps[-1] == 0:
            return 0.5
        return float(np.trapezoid(tps / tps[-1], fps / fps[-1]))


def synth_clicks(n):
    g = torch.Generator().manual_seed(28)
    cats = (VOCAB * torch.rand(n, FIELDS, generator=g) ** 3).long()
    taste = torch.randn(FIELDS, VOCAB, generator=g) * 0.6
    score = sum(taste[f][cats[:, f]] for f in range(FIELDS)) - 1.5
    y = (torch.rand(n, generator=g) < torch.sigmoid(score)).float()
    return cats, y


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    cats, y = synth_clicks(EPOCH * BATCH)
    model = DeepFM()
    optim = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    auc = EpochAUC()
    line = {}
    for step in steps_of(opt):
        k = step % EPOCH
        if k == 0:
            auc.reset()
            perm = torch.randperm(len(y))
        pick = perm[k * BATCH : (k + 1) * BATCH]
        cx, cy = cats[pick], y[pick]
        logits = model(cx)
        loss = F.binary_cross_entropy_with_logits(logits, cy)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        auc.update(logits, cy)
        line.update(step=step + 1, loss=round(loss.item(), 4))
        if not opt.better:
            line["auc"] = round(auc.compute(), 4)
        if (step + 1) % 100 == 0:
            if opt.better:
                line["auc"] = round(auc.compute(), 4)
            print(line, flush=True)


if __name__ == "__main__":
    main()
