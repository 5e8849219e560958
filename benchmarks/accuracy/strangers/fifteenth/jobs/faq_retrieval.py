"""Nearest FAQ entries for incoming questions. Small bag-of-subwords encoder, cosine similarity."""

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, buckets=20000, dim=256):
        super().__init__()
        self.bag = nn.EmbeddingBag(buckets, dim, mode="mean")
        self.mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.buckets = buckets

    def pieces(self, text):
        word = f"<{text}>"
        return [hash(word[i : i + 3]) % self.buckets for i in range(len(word) - 2)]

    def forward(self, texts):
        ids, offsets = [], []
        for t in texts:
            offsets.append(len(ids))
            ids.extend(self.pieces(t))
        return self.mix(self.bag(torch.tensor(ids), torch.tensor(offsets)))


class FaqIndex:
    def __init__(self, vectors, answers, prepared):
        self.answers = answers
        self.prepared = prepared
        self.vectors = F.normalize(vectors, dim=1) if prepared else vectors

    def query(self, q, k=5):
        q = F.normalize(q, dim=1)
        docs = self.vectors if self.prepared else F.normalize(self.vectors, dim=1)
        scores, rows = torch.topk(q @ docs.T, k, dim=1)
        return [[(self.answers[r], s) for r, s in zip(rr, ss)] for rr, ss in zip(rows.tolist(), scores.tolist())]


class Service:
    def __init__(self, encoder, index):
        self.encoder, self.index = encoder.eval(), index
        self.served = 0

    @torch.inference_mode()
    def handle(self, questions):
        hits = self.index.query(self.encoder(questions))
        self.served += len(questions)
        return hits


def question(rnd):
    words = ["invoice", "refund", "parcel", "late", "how", "do", "I", "cancel", "order", "my", "address", "change"]
    return " ".join(rnd.choices(words, k=rnd.randint(4, 12)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--docs", type=int, default=30000)
    args = ap.parse_args()
    torch.manual_seed(0)
    rnd = random.Random(0)
    vectors = torch.randn(args.docs, 256)
    index = FaqIndex(vectors, [f"faq-{i}" for i in range(args.docs)], args.better)
    service = Service(Encoder(), index)
    latency, t0 = [], time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        request = [question(rnd) for _ in range(8)]
        answers = service.handle(request)
        latency.append(time.perf_counter() - t)
    print(service.served, "questions,", "last:", answers[0][0])
    if args.times:
        with open(args.times, "w") as f:
            json.dump(latency, f)


if __name__ == "__main__":
    main()
