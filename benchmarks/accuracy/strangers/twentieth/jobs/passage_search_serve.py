"""Dense passage search: encode the query, score every passage, answer with the best ten."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM = 8000, 64


class QueryEncoder(nn.Module):
    def __init__(self, width=192, layers=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, DIM)

    def forward(self, ids):
        return F.normalize(self.out(self.encoder(self.emb(ids)).mean(1)), dim=-1)


class PassageIndex:
    def __init__(self, n, seed=0, partial=False):
        gen = torch.Generator().manual_seed(seed)
        self.vectors = F.normalize(torch.randn(n, DIM, generator=gen), dim=-1)
        self.source = torch.randint(0, 50, (n,), generator=gen)
        self.partial = partial

    def search(self, query, k, sources=None):
        scores = self.vectors @ query
        if sources is not None:
            allowed = torch.zeros(50, dtype=torch.bool)
            allowed[sources] = True
            scores.masked_fill_(~allowed[self.source], -1.0)
        if self.partial:
            best = scores.topk(k).indices
        else:
            best = torch.argsort(scores, descending=True)[:k]
        return best.tolist(), scores[best].tolist()


class SearchService:
    def __init__(self, encoder, index):
        self.encoder = encoder.eval()
        self.index = index

    @torch.inference_mode()
    def handle(self, body):
        request = json.loads(body)
        ids = torch.tensor([[hash_token(w) for w in request["query"].split()]])
        query = self.encoder(ids)[0]
        rows, scores = self.index.search(query, request.get("k", 10), request.get("sources"))
        hits = [{"passage": f"p{r:07d}", "score": round(s, 5)} for r, s in zip(rows, scores)]
        return json.dumps({"hits": hits})


def hash_token(word):
    h = 5381
    for ch in word:
        h = (h * 33 + ord(ch)) & 0xFFFFFFFF
    return h % VOCAB


def queries(seed):
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefghijklmnop"), 6)) for _ in range(2000)]
    while True:
        body = {"query": " ".join(words[i] for i in rng.integers(0, 2000, rng.integers(8, 24))), "k": 10}
        if rng.random() < 0.5:
            body["sources"] = rng.choice(50, 20, replace=False).tolist()
        yield json.dumps(body)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    service = SearchService(QueryEncoder(), PassageIndex(250_000, partial=args.better))
    times, size = [], 0
    start = last = time.perf_counter()
    for body in queries(1):
        size += len(service.handle(body))
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    print(f"{len(times)} queries, {size} bytes answered")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
