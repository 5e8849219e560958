"""Credit scoring from sixty coded columns; every column has its own codes."""

import argparse
import json
import time

import torch
from torch import nn


class ColumnEmbedding(nn.Module):
    """One table per column."""

    def __init__(self, cards, d):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(c, d) for c in cards)

    def forward(self, codes):
        return torch.stack([table(codes[:, k]) for k, table in enumerate(self.tables)], 1)


class JointEmbedding(nn.Module):
    """All columns in one table, each with its own range of rows."""

    def __init__(self, cards, d):
        super().__init__()
        self.table = nn.Embedding(sum(cards), d)
        start = torch.tensor([0] + cards[:-1]).cumsum(0)
        self.register_buffer("start", start)

    def forward(self, codes):
        return self.table(codes + self.start)


class Scorer(nn.Module):
    def __init__(self, embedding, cards, d=8, width=192):
        super().__init__()
        self.emb = embedding(cards, d)
        self.norm = nn.LayerNorm(len(cards) * d)
        self.net = nn.Sequential(
            nn.Linear(len(cards) * d, width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 1),
        )

    def forward(self, codes):
        return self.net(self.norm(self.emb(codes).flatten(1))).squeeze(1)


class Bureau:
    def __init__(self, columns=60, rows=30_000, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.cards = torch.randint(3, 40, (columns,), generator=g).tolist()
        self.codes = torch.stack([torch.randint(c, (rows,), generator=g) for c in self.cards], 1)
        risk = (self.codes[:, :6] % 3 == 0).float().sum(1)
        self.default = (risk + torch.randn(rows, generator=g) > 3).float()
        self.g = g

    def loader(self, size):
        order = torch.randperm(len(self.codes), generator=self.g)
        for rows in order.split(size):
            yield self.codes[rows], self.default[rows]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    bureau = Bureau()
    model = Scorer(JointEmbedding if args.better else ColumnEmbedding, bureau.cards)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times, begin = [], time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        for codes, default in bureau.loader(512):
            loss = nn.functional.binary_cross_entropy_with_logits(model(codes), default)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
    print(f"{len(times)} steps, loss {loss.item():.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
