"""Sentiment of product reviews: bag-of-ngrams CNN, accelerate loop."""

import argparse
import json
import random
import re
import time
import unicodedata

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+(?:[.,]\d+)*|[^\w\s]")
URL = re.compile(r"https?://\S+|www\.\S+")
REPEAT = re.compile(r"(.)\1{2,}")
BUCKETS, MAXLEN = 20_000, 160


def make_reviews(n=1500):
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnoprstuvwz", k=rng.randint(2, 9))) for _ in range(3000)]
    out = []
    for _ in range(n):
        w = rng.choices(words, k=rng.randint(60, 170))
        w[3] = "sooooo"
        w[5] = "https://shop.example/item?id=%d" % rng.randrange(10**6)
        out.append((" ".join(w).capitalize() + " caf\u00e9!!! 4.5 stars", rng.randrange(2)))
    return out


def normalise(text):
    text = unicodedata.normalize("NFKD", text.lower())
    text = "".join(c for c in text if not unicodedata.combining(c))
    return REPEAT.sub(r"\1\1", URL.sub(" url ", text))


def encode(text):
    toks = TOKEN.findall(normalise(text))
    grams = toks + [a + "_" + b for a, b in zip(toks, toks[1:])]
    ids = []
    for g in grams[:MAXLEN]:
        h = 5381
        for c in g:
            h = (h * 33 ^ ord(c)) & 0xFFFFFFFF
        ids.append(h % BUCKETS + 1)
    return ids + [0] * (MAXLEN - len(ids))


class Reviews(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        text, y = self.rows[i]
        return torch.tensor(encode(text)), y


class EncodedReviews(Dataset):
    def __init__(self, rows):
        self.x = torch.tensor([encode(t) for t, _ in rows])
        self.y = [y for _, y in rows]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class TextCNN(nn.Module):
    def __init__(self, d=64, c=48):
        super().__init__()
        self.emb = nn.Embedding(BUCKETS + 1, d, padding_idx=0, sparse=False).requires_grad_(False)
        self.proj = nn.Linear(d, d)
        self.convs = nn.ModuleList(nn.Conv1d(d, c, k) for k in (3, 5))
        self.out = nn.Linear(2 * c, 2)

    def forward(self, x):
        h = torch.relu(self.proj(self.emb(x))).transpose(1, 2)
        return self.out(torch.cat([torch.relu(c(h)).amax(-1) for c in self.convs], 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    acc = Accelerator(cpu=True)
    rows = make_reviews()
    ds = EncodedReviews(rows) if args.better else Reviews(rows)
    model = TextCNN()
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model, opt, loader = acc.prepare(model, opt, DataLoader(ds, batch_size=32, shuffle=True))
    times, t0, stop = [], time.perf_counter(), False
    while not stop:
        tick = time.perf_counter()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
            tock = time.perf_counter()
            times.append(tock - tick)
            tick = tock
            if tock - t0 > args.seconds:
                stop = True
                break
        acc.print("loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
