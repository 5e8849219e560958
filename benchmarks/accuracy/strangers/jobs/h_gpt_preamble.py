"""Trains merges of a tokenizer in Python first (long), then a small GPT; saves samples now and then."""

import argparse
import collections
import json
import os
import random
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F


def train_merges(words, count=60):
    corpus = collections.Counter(words)
    pieces = {w: tuple(w) for w in corpus}
    merges = []
    for _ in range(count):
        pairs = collections.Counter()
        for w, n in corpus.items():
            for pair in zip(pieces[w], pieces[w][1:], strict=False):
                pairs[pair] += n
        if not pairs:
            break
        (a, b), _ = pairs.most_common(1)[0]
        merges.append((a, b))
        for w in pieces:
            out, i, p = [], 0, pieces[w]
            while i < len(p):
                if i + 1 < len(p) and p[i] == a and p[i + 1] == b:
                    out.append(a + b)
                    i += 2
                else:
                    out.append(p[i])
                    i += 1
            pieces[w] = tuple(out)
    vocabulary = {piece: i for i, piece in enumerate(sorted({x for p in pieces.values() for x in p}))}
    return [vocabulary[x] for w in words for x in pieces[w]], len(vocabulary)


class Block(nn.Module):
    def __init__(self, dim=256, heads=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(d, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


def save_sample(folder, step, ids):
    with open(os.path.join(folder, f"{step}.txt"), "w") as f:
        f.write(" ".join(map(str, ids)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(0)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(3, 8))) for _ in range(20_000)]
    tokens, vocab = train_merges(words, 40)
    data = torch.tensor(tokens)
    print("vocabulary", vocab, "tokens", len(data))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocab, 256), Block(), Block(), nn.LayerNorm(256), nn.Linear(256, vocab))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    folder = tempfile.mkdtemp()
    times, start = [], time.perf_counter()
    last = start
    while last - start < args.seconds:
        where = torch.randint(0, len(data) - 130, (4,))
        x = torch.stack([data[i : i + 128] for i in where.tolist()])
        y = torch.stack([data[i + 1 : i + 129] for i in where.tolist()])
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if len(times) % 100 == 99:
            print(f"{len(times)} {loss.item():.3f}")
            save_sample(folder, len(times), logits[0].argmax(-1).tolist())
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
