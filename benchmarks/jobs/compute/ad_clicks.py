"""Click-through model for display ads: hashed categorical fields, FM interaction and a deep part."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FIELDS = {"user": 150_000, "page": 40_000, "campaign": 4_000, "creative": 20_000, "city": 3_000, "device": 600}
DENSE = 10


class Impressions:
    """Day log held in memory; yields shuffled mini-batches."""

    def __init__(self, rows=120_000, seed=6):
        rng = np.random.default_rng(seed)
        cols, offset = [], 0
        for size in FIELDS.values():
            raw = rng.zipf(1.3, rows) * 2654435761 % size
            cols.append(raw + offset)
            offset += size
        self.cats = torch.from_numpy(np.stack(cols, 1).astype(np.int64))
        self.dense = torch.from_numpy(rng.standard_normal((rows, DENSE)).astype(np.float32))
        score = 0.8 * self.dense[:, 0] + ((self.cats[:, 2] % 7) - 3) * 0.3 - 1.0
        self.click = torch.bernoulli(score.sigmoid(), generator=torch.Generator().manual_seed(seed))

    def batches(self, size):
        order = torch.randperm(len(self.click))
        for idx in order.split(size):
            if len(idx) == size:
                yield self.cats[idx], self.dense[idx], self.click[idx]


class ClickNet(nn.Module):
    def __init__(self, opt, dim=12, hidden=(192, 96)):
        super().__init__()
        total = sum(FIELDS.values())
        self.emb = nn.Embedding(total, dim, sparse=opt.better)
        self.bias = nn.Embedding(total, 1, sparse=opt.better)
        nn.init.normal_(self.emb.weight, std=0.01)
        nn.init.zeros_(self.bias.weight)
        layers, width = [], len(FIELDS) * dim + DENSE
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))
        self.wide = nn.Linear(DENSE, 1)

    def forward(self, cats, dense):
        e = self.emb(cats)
        pairwise = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        deep = self.deep(torch.cat([e.flatten(1), dense], 1)).squeeze(1)
        return pairwise + deep + self.bias(cats).sum((1, 2)) + self.wide(dense).squeeze(1)


@torch.inference_mode()
def holdout(model, data, size=4096):
    logits = model(data.cats[:size], data.dense[:size])
    return F.binary_cross_entropy_with_logits(logits, data.click[:size]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=2048)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    data, check = Impressions(), Impressions(rows=5000, seed=77)
    model = ClickNet(opt)
    optim = torch.optim.Adagrad(model.parameters(), lr=0.03)

    times, running = [], torch.zeros(())
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for cats, dense, click in data.batches(opt.batch):
            loss = F.binary_cross_entropy_with_logits(model(cats, dense), click)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            running += loss.detach()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 100 == 0:
                print(f"step {len(times)} loss {running.item() / 100:.4f}")
                running.zero_()
            if last - begin >= opt.seconds:
                break
    print(f"holdout log-loss {holdout(model, check):.4f}")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
