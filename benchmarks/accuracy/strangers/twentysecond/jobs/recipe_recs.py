"""Recipe recommendations: scores the catalogue for a batch of users and returns the best few."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class UserTower(nn.Module):
    """Encodes the last viewed recipes plus a context vector (hour, device, region)."""

    def __init__(self, n_items, dim, context=12, layers=2):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.ctx = nn.Linear(context, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, dropout=0.0, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, history, context):
        h = self.encoder(self.items(history))
        pooled = torch.cat([h.mean(1), self.ctx(context)], 1)
        return F.normalize(self.head(pooled), dim=1)


class Recommender:
    def __init__(self, n_items, dim, opt):
        self.tower = UserTower(n_items, dim).eval()
        self.opt = opt
        with torch.no_grad():
            self.catalogue = F.normalize(self.tower.items.weight, dim=1).t().contiguous()
        self.boost = torch.rand(n_items) * 0.05

    def rank(self, scores, k):
        if self.opt.better:
            return scores.topk(k, dim=1).indices
        return scores.argsort(dim=1, descending=True)[:, :k]

    @torch.inference_mode()
    def answer(self, history, context, k):
        user = self.tower(history, context)
        scores = torch.addmm(self.boost, user, self.catalogue)
        scores.scatter_(1, history, float("-inf"))
        best = self.rank(scores, k)
        return best, scores.gather(1, best)


class Traffic:
    """Endless stream of user batches with a popularity-skewed history."""

    def __init__(self, n_items, users, length, seed):
        self.rng = np.random.default_rng(seed)
        self.n_items, self.users, self.length = n_items, users, length

    def __iter__(self):
        return self

    def __next__(self):
        skew = self.rng.random((self.users, self.length)) ** 3
        history = (skew * self.n_items).astype(np.int64)
        context = self.rng.standard_normal((self.users, 12)).astype(np.float32)
        return torch.from_numpy(history), torch.from_numpy(context)


def render(best, weight):
    """Payload for the front end."""
    rows = []
    for ids, values in zip(best.tolist(), weight.tolist()):
        rows.append({"recipes": ids, "scores": [round(v, 4) for v in values]})
    return json.dumps(rows)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--items", type=int, default=40000)
    ap.add_argument("--users", type=int, default=12)
    ap.add_argument("--history", type=int, default=60)
    ap.add_argument("-k", type=int, default=20)
    return ap.parse_args()


def main():
    opt = parse()
    torch.manual_seed(7)
    service = Recommender(opt.items, 96, opt)
    traffic = Traffic(opt.items, opt.users, opt.history, seed=9)

    latency, size = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < opt.seconds:
        t = time.perf_counter()
        history, context = next(traffic)
        best, weight = service.answer(history, context, opt.k)
        body = render(best, weight)
        latency.append(time.perf_counter() - t)
        size += len(body)
        if len(latency) == 20:
            print(f"sample answer: {best[0, :5].tolist()}")
    ordered = sorted(latency)
    print(
        f"{len(latency)} requests, p50 {ordered[len(ordered) // 2] * 1e3:.1f} ms, "
        f"p95 {ordered[int(len(ordered) * 0.95)] * 1e3:.1f} ms, {size / 1e6:.2f} MB sent"
    )
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(latency, f)


if __name__ == "__main__":
    main()
