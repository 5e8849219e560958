"""Sentence-embedding endpoint: each request holds a handful of tokenised sentences."""

import argparse
import json
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 8000


class SentenceEncoder(nn.Module):
    def __init__(self, dim=256, layers=3, heads=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.pos = nn.Embedding(128, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        pad = ids.eq(0)
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        h = self.encoder(h, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1)
        return F.normalize((h * keep).sum(1) / keep.sum(1), dim=1)


class Endpoint:
    def __init__(self, model):
        self.model = model.eval().to(torch.bfloat16)

    @torch.inference_mode()
    def embed(self, sentences):
        width = max(len(s) for s in sentences)
        ids = torch.tensor([s + [0] * (width - len(s)) for s in sentences])
        return self.model(ids).float()


def traffic(seed=0):
    rng = random.Random(seed)
    while True:
        base = rng.randint(16, 40)
        yield [[rng.randrange(1, VOCAB) for _ in range(base + rng.randint(0, 2))] for _ in range(16)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    endpoint = Endpoint(SentenceEncoder())
    requests = traffic()
    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        vectors = endpoint.embed(next(requests))
        body = vectors.numpy().tobytes()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} requests, last body {len(body)} bytes")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
