"""SASRec-like next-item model on synthetic listening sessions."""

import argparse
import json
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def make_histories(users, items, rng):
    popularity = 1.0 / np.arange(1, items + 1) ** 0.6
    cdf = np.cumsum(popularity / popularity.sum())
    histories = {}
    for u in range(users):
        n = int(rng.integers(500, 1400))
        histories[u] = (np.searchsorted(cdf, rng.random(n)).clip(0, items - 1) + 1).tolist()
    return histories


class ListeningDataset(Dataset):
    """Returns (input sequence, next items, one unheard item for each position)."""

    def __init__(self, histories, items, maxlen, as_set=False):
        self.histories = histories
        self.users = list(histories)
        self.items = items
        self.maxlen = maxlen
        self.heard = {u: set(h) for u, h in histories.items()} if as_set else histories

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        user = self.users[index % len(self.users)]
        history = self.histories[user]
        end = random.randint(self.maxlen + 1, len(history))
        window = history[end - self.maxlen - 1 : end]
        heard = self.heard[user]
        negatives = []
        for _ in range(self.maxlen):
            candidate = random.randint(1, self.items)
            while candidate in heard:
                candidate = random.randint(1, self.items)
            negatives.append(candidate)
        return (torch.tensor(window[:-1]), torch.tensor(window[1:]), torch.tensor(negatives))


class SASRec(nn.Module):
    def __init__(self, items, maxlen, dim=48, heads=2, layers=2):
        super().__init__()
        self.item = nn.Embedding(items + 1, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.zeros(1, maxlen, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(maxlen))
        self.norm = nn.LayerNorm(dim)

    def forward(self, seq):
        h = self.item(seq) * self.item.embedding_dim**0.5 + self.pos
        return self.norm(self.encoder(h, mask=self.mask, is_causal=True))

    def loss(self, seq, pos, neg):
        h = self(seq)
        up = (h * self.item(pos)).sum(-1)
        down = (h * self.item(neg)).sum(-1)
        return F.softplus(-up).mean() + F.softplus(down).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--maxlen", type=int, default=50)
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    random.seed(3)
    torch.manual_seed(3)
    items = 6000
    histories = make_histories(1500, items, np.random.default_rng(3))
    data = ListeningDataset(histories, items, args.maxlen, as_set=args.better)
    loader = DataLoader(data, batch_size=args.batch, shuffle=False, drop_last=True)
    model = SASRec(items, args.maxlen)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    times = []
    start = last = time.perf_counter()
    for step, (seq, pos, neg) in enumerate(loader):
        loss = model.loss(seq, pos, neg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step:5d}  bpr {loss.item():.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start >= args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
