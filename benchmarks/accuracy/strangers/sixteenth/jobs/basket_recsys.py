"""Next-basket recommender: item vectors, sampled softmax, Adagrad."""

import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F


class BasketModel(nn.Module):
    def __init__(self, items, d=32, hidden=256, **table):
        super().__init__()
        self.items = nn.Embedding(items, d, **table)
        nn.init.normal_(self.items.weight, std=0.1)
        self.encoder = nn.Sequential(
            nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, d)
        )

    def forward(self, basket, candidates):
        user = self.encoder(self.items(basket).mean(1))
        return torch.einsum("bd,bkd->bk", user, self.items(candidates))


class Shop:
    def __init__(self, items, seed=0):
        self.items, self.g = items, torch.Generator().manual_seed(seed)

    def popularity(self, shape):
        return (torch.rand(shape, generator=self.g) ** 2 * self.items).long()

    def batch(self, n, size=12, negatives=20):
        basket = self.popularity((n, size))
        positive = (basket[:, :1] + 1) % self.items
        return basket, torch.cat([positive, self.popularity((n, negatives))], 1)


def recall(scores):
    return (scores.argmax(1) == 0).float().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--items", type=int, default=100_000)
    ap.add_argument("--batch", type=int, default=384)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    shop = Shop(args.items)
    model = BasketModel(args.items, sparse=True) if args.better else BasketModel(args.items)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    zero = torch.zeros(args.batch, dtype=torch.long)
    times, hits = [], 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        basket, candidates = shop.batch(args.batch)
        scores = model(basket, candidates)
        loss = F.cross_entropy(scores, zero)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits = 0.95 * hits + 0.05 * recall(scores.detach()).item()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.3f}, recall@1 {hits:.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
