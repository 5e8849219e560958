"""Sentiment of reviews: a bag of subwords with a small transformer."""

import argparse
import json
import random
import re
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

WORDS = [
    "the",
    "movie",
    "was",
    "unbelievably",
    "great",
    "terrible",
    "acting",
    "plot",
    "wonderful",
    "boring",
    "I",
    "loved",
]


class SubwordTokenizer:
    def __init__(self, merges=600):
        rng = random.Random(0)
        alphabet = sorted(set("".join(WORDS)))
        self.ranks = {}
        for word in WORDS:
            for i in range(len(word) - 1):
                self.ranks.setdefault((word[i], word[i + 1]), len(self.ranks))
        while len(self.ranks) < merges:
            self.ranks.setdefault((rng.choice(alphabet), rng.choice(alphabet) + rng.choice(alphabet)), len(self.ranks))
        self.vocab = {}

    def bpe(self, word):
        parts = list(word)
        while len(parts) > 1:
            pairs = [
                (self.ranks.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
            ]
            rank, i = min(pairs)
            if rank == 1 << 30:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return parts

    def encode(self, text):
        ids = []
        for word in re.findall(r"\w+|[^\w\s]", text):
            ids += [self.vocab.setdefault(p, len(self.vocab) % 8000 + 1) for p in self.bpe(word)]
        return ids


class Classifier(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(8002, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)).mean(1))


def reviews(n):
    rng = random.Random(1)
    return [(" ".join(rng.choice(WORDS) for _ in range(160)), rng.randrange(2)) for _ in range(n)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = SubwordTokenizer()
    data = reviews(1200)
    if args.better:
        cache = {}
        for text, _ in data:
            for word in text.split():
                if word not in cache:
                    cache[word] = tokenizer.encode(word)
        data = [([i for w in text.split() for i in cache[w]], y) for text, y in data]

    def collate(batch):
        ids = [torch.tensor((x if args.better else tokenizer.encode(x))[:128]) for x, _ in batch]
        return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor([y for _, y in batch])

    loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate, drop_last=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    times, start = [], time.perf_counter()
    last, running = start, True
    while running:
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            running = now - start < args.seconds
            if not running:
                break
        print("loss", float(loss))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
