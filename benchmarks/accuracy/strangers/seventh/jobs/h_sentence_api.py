"""Sentence-embedding service: micro-batches of waiting texts, padded to the longest of the batch."""

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocab=8000, dim=256, heads=4, layers=4, ff=1024, top=64):
        super().__init__()
        self.heads = heads
        self.tok, self.pos = nn.Embedding(vocab, dim, padding_idx=0), nn.Embedding(top, dim)
        self.qkv = nn.ModuleList([nn.Linear(dim, 3 * dim) for _ in range(layers)])
        self.mix = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])
        self.ff = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, ff), nn.GELU(), nn.Linear(ff, dim)) for _ in range(layers)]
        )
        self.n1 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])
        self.n2 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])

    def forward(self, ids):
        b, t = ids.shape
        real = ids != 0
        h = self.tok(ids) + self.pos.weight[:t]
        mask = real[:, None, None, :]
        for qkv, mix, ff, n1, n2 in zip(self.qkv, self.mix, self.ff, self.n1, self.n2):
            q, k, v = qkv(n1(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            h = h + mix(a.transpose(1, 2).reshape(b, t, -1))
            h = h + ff(n2(h))
        w = real.unsqueeze(-1).to(h.dtype)
        return F.normalize((h * w).sum(1) / w.sum(1), dim=1)


class Traffic:
    """A backlog of tokenised texts; similar lengths wait in the same lane."""

    def __init__(self, seed=0):
        self.rng = random.Random(seed)

    def micro_batch(self, size=16):
        base = self.rng.choice([16, 24, 32, 48])
        return [[self.rng.randrange(1, 8000) for _ in range(base - self.rng.randrange(2))] for _ in range(size)]


class Service:
    def __init__(self):
        self.model = Encoder().eval()

    def collate(self, texts):
        width = max(map(len, texts))
        return torch.tensor([t + [0] * (width - len(t)) for t in texts])

    @torch.inference_mode()
    def embed(self, texts):
        return self.model(self.collate(texts)).tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    service, traffic = Service(), Traffic()
    service.embed(traffic.micro_batch())
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        texts = traffic.micro_batch()
        t = time.perf_counter()
        vectors = service.embed(texts)
        times.append(time.perf_counter() - t)
        if len(times) % 100 == 0:
            tail = sorted(times[-100:])
            print(f"{len(times)} calls p50 {tail[50] * 1e3:.1f} p95 {tail[95] * 1e3:.1f} ms, width {len(vectors[0])}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
