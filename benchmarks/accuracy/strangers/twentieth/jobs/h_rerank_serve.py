"""Re-ranking service: a cross-encoder scores 40 passages per query in length-sorted micro-batches."""

import argparse
import json
import re
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, PAD, SEP, LIMIT, PASSAGES, MICRO = 20_000, 0, 1, 96, 40, 10
WORD = re.compile(r"\w+")


class HashTokenizer:
    def __init__(self):
        self.known = {}

    def __call__(self, text):
        ids = []
        for word in WORD.findall(text.lower()):
            if word not in self.known:
                self.known[word] = 2 + zlib.crc32(word.encode()) % (VOCAB - 2)
            ids.append(self.known[word])
        return ids


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CrossEncoder(nn.Module):
    def __init__(self, dim=128, heads=4, layers=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Parameter(torch.randn(LIMIT, dim) * 0.02)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, 1)

    def forward(self, tokens):
        mask = (tokens != PAD)[:, None, None, :]
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x[:, 0]).squeeze(1)


class Reranker:
    def __init__(self, model):
        self.model, self.tokenize = model, HashTokenizer()

    def encode(self, query, passages):
        head = self.tokenize(query) + [SEP]
        return [(head + self.tokenize(p))[:LIMIT] for p in passages]

    @torch.inference_mode()
    def __call__(self, query, passages, top=10):
        pairs = self.encode(query, passages)
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i]), reverse=True)
        scores = np.empty(len(pairs), np.float32)
        for start in range(0, len(order), MICRO):
            rows = order[start : start + MICRO]
            width = len(pairs[rows[0]])
            padded = [pairs[r] + [PAD] * (width - len(pairs[r])) for r in rows]
            scores[rows] = self.model(torch.tensor(padded)).numpy()
        best = scores.argsort()[::-1][:top]
        return [{"passage": int(i), "score": round(float(scores[i]), 4)} for i in best]


def traffic(seed):
    rng = np.random.default_rng(seed)
    words = np.array([f"w{i:x}" for i in range(9000)])
    corpus = []
    for _ in range(2000):
        length = int(np.clip(rng.lognormal(3.4, 0.4), 8, 110))
        corpus.append(" ".join(words[(rng.random(length) ** 2 * len(words)).astype(int)]))
    while True:
        query = " ".join(words[rng.integers(0, len(words), rng.integers(2, 7))])
        yield query, [corpus[i] for i in rng.integers(0, len(corpus), PASSAGES)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true", help="no difference here")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    rerank = Reranker(CrossEncoder().eval())
    times = []
    begin = last = time.perf_counter()
    for query, passages in traffic(seed=101):
        answer = json.dumps(rerank(query, passages))
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 20 == 0:
            window = sorted(times[-100:])
            print(
                f"{len(times)} requests, p50 {1e3 * window[len(window) // 2]:.1f} ms, {len(answer)} bytes", flush=True
            )
        if last - begin >= args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
