# click-through-rate model: 10 hashed categorical fields, one shared table
import argparse
import json
import time

import torch
import torch.nn as nn

FIELDS, TABLE, DIM = 10, 150_000, 16


class CTR(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.table = nn.Embedding(TABLE, DIM, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.01)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * DIM + 13, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, cat, num):
        e = self.table(cat)
        fm = (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1)
        return self.deep(torch.cat([e.flatten(1), num], 1)).squeeze(1) + fm


class Stream:
    """endless click log"""

    def __init__(self, bs):
        self.bs, self.g = bs, torch.Generator().manual_seed(5)

    def __iter__(self):
        return self

    def __next__(self):
        u = torch.rand(self.bs, FIELDS, generator=self.g)
        cat = (u.pow(3) * TABLE).long()
        num = torch.rand(self.bs, 13, generator=self.g)
        y = (torch.rand(self.bs, generator=self.g) < 0.07).float()
        return cat, num, y


def build_optimizers(model, sparse):
    if sparse:
        return [
            torch.optim.SparseAdam(model.table.parameters(), lr=1e-3),
            torch.optim.Adam(model.deep.parameters(), lr=1e-3),
        ]
    return [torch.optim.Adam(model.parameters(), lr=1e-3)]


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    p.add_argument("--batch-size", type=int, default=512)
    a = p.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = CTR(a.better)
    opts = build_optimizers(model, a.better)
    lossf = nn.BCEWithLogitsLoss()
    ts = [time.perf_counter()]
    avg = 0.0
    for cat, num, y in Stream(a.batch_size):
        for o in opts:
            o.zero_grad()
        loss = lossf(model(cat, num), y)
        loss.backward()
        for o in opts:
            o.step()
        avg = 0.99 * avg + 0.01 * loss.item()
        ts.append(time.perf_counter())
        if len(ts) % 100 == 0:
            print(f"{len(ts)} batches, logloss {avg:.4f}")
        if len(ts) > 24 and ts[-1] - ts[0] >= a.seconds:
            break
    if a.times:
        with open(a.times, "w") as f:
            json.dump([round(y - x, 7) for x, y in zip(ts[:-1], ts[1:])], f)


if __name__ == "__main__":
    main()
