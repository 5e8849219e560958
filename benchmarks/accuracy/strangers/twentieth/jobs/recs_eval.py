"""Offline evaluation of a sequential recommender: recall and NDCG at 10 and 50 over the whole catalogue."""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

ITEMS, DIM, LENGTH, HELD_OUT, CUTOFFS = 20_000, 64, 30, 5, (10, 50)


class SequenceRecommender(nn.Module):
    def __init__(self, layers=2, heads=2):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.position = nn.Parameter(torch.randn(LENGTH, DIM) * 0.02)
        self.heads = heads
        self.qkv = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(layers))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(DIM)

    def forward(self, history):
        x = self.items(history) + self.position
        for qkv, feed in zip(self.qkv, self.feed):
            b, n, d = x.shape
            q, k, v = qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)
            x = x + feed(self.norm(x))
        return self.norm(x[:, -1])

    def score(self, history):
        return self.forward(history) @ self.items.weight.t()


class Users:
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        popularity = torch.rand(count, LENGTH + HELD_OUT, generator=g).pow(2)
        picked = (popularity * ITEMS).long()
        self.history, self.future = picked[:, :LENGTH], picked[:, LENGTH:]

    def batches(self, size):
        return zip(self.history.split(size), self.future.split(size))


class RankingMetrics:
    def __init__(self, better):
        self.better = better
        self.sums = {f"{name}@{k}": 0.0 for name in ("recall", "ndcg") for k in CUTOFFS}
        self.users = 0
        self.discount = 1 / torch.log2(torch.arange(max(CUTOFFS)) + 2.0)

    def ranked(self, scores):
        if self.better:
            return scores.topk(max(CUTOFFS), dim=1).indices
        order = torch.argsort(scores, dim=1, descending=True)
        return order[:, : max(CUTOFFS)]

    def update(self, scores, future):
        hits = (self.ranked(scores)[:, :, None] == future[:, None, :]).any(2).float()
        ideal = self.discount[:HELD_OUT].sum()
        for k in CUTOFFS:
            self.sums[f"recall@{k}"] += (hits[:, :k].sum(1) / HELD_OUT).sum().item()
            self.sums[f"ndcg@{k}"] += ((hits[:, :k] * self.discount[:k]).sum(1) / ideal).sum().item()
        self.users += len(future)

    def result(self):
        return {name: value / max(self.users, 1) for name, value in self.sums.items()}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    users = Users(20_000, seed=61)
    model = SequenceRecommender().eval()
    metrics = RankingMetrics(args.better)
    times = []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for history, future in users.batches(args.batch_size):
            with torch.inference_mode():
                scores = model.score(history)
                scores.scatter_(1, history, -math.inf)
                metrics.update(scores, future)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 50 == 0:
                print(metrics.users, {k: round(v, 5) for k, v in metrics.result().items()}, flush=True)
            if last - begin >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
