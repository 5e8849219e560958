"""Sentiment classifier for short reviews, small transformer encoder."""

import argparse
import math
import random
import time
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader

MAX_LEN = 128
PAD = 0


def make_reviews(n, seed=0):
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(4000)]
    out = []
    for _ in range(n):
        length = min(MAX_LEN, max(4, int(rng.lognormvariate(3.1, 0.45))))
        label = rng.randint(0, 1)
        pool = words[:2500] if label else words[1500:]
        out.append((" ".join(rng.choices(pool, k=length)), label))
    return out


def build_vocab(reviews):
    vocab = {"<pad>": PAD}
    for text, _ in reviews:
        for w in text.split():
            vocab.setdefault(w, len(vocab))
    return vocab


def encode(reviews, vocab):
    return [([vocab[w] for w in text.split()], label) for text, label in reviews]


def collate(batch, width=None):
    width = width or max(len(ids) for ids, _ in batch)
    tokens = torch.full((len(batch), width), PAD, dtype=torch.long)
    for row, (ids, _) in enumerate(batch):
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens, torch.tensor([label for _, label in batch])


class Classifier(nn.Module):
    def __init__(self, vocab, dim=128, heads=4, layers=2):
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(MAX_LEN, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 2)

    def forward(self, tokens):
        mask = tokens == PAD
        x = self.embed(tokens) * math.sqrt(self.dim) + self.pos[: tokens.size(1)]
        x = self.encoder(x, src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1)
        return self.out((x * keep).sum(1) / keep.sum(1))


class Fit:
    def __init__(self, model, loader, lr=3e-4):
        self.model, self.loader = model, loader
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.loss = nn.CrossEntropyLoss()
        self.step_times = []

    def batches(self):
        while True:
            yield from self.loader

    def run(self, seconds):
        start = mark = time.perf_counter()
        for i, (tokens, labels) in enumerate(self.batches()):
            self.opt.zero_grad(set_to_none=True)
            loss = self.loss(self.model(tokens), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            if i % 50 == 0:
                print(i, round(loss.item(), 4))
            now = time.perf_counter()
            self.step_times.append(now - mark)
            mark = now
            if now - start > seconds:
                return


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(1)
    reviews = make_reviews(4000)
    vocab = build_vocab(reviews)
    data = encode(reviews, vocab)
    width = None if a.better else MAX_LEN
    loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=partial(collate, width=width))
    fit = Fit(Classifier(len(vocab)), loader)
    fit.run(a.seconds)
    if a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(map(str, fit.step_times)) + "\n")


if __name__ == "__main__":
    main()
