"""Cross-encoder reranker behind a search endpoint: one request = one query with its candidates."""

import argparse
import json
import random
import time

import torch
import torch.nn as nn

VOCAB = 5000


class CrossEncoder(nn.Module):
    def __init__(self, dim=64, layers=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.pos = nn.Embedding(64, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.score = nn.Linear(dim, 1)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        h = self.encoder(h, src_key_padding_mask=ids.eq(0))
        return self.score(h[:, 0]).squeeze(1)


class Reranker:
    def __init__(self, model, together):
        self.model = model.eval()
        self.together = together

    @torch.inference_mode()
    def rank(self, query, passages):
        if self.together:
            rows = [query + p for p in passages]
            width = max(map(len, rows))
            ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
            scores = self.model(ids).tolist()
        else:
            scores = []
            for passage in passages:
                ids = torch.tensor([query + passage])
                scores.append(self.model(ids).item())
        return sorted(range(len(passages)), key=scores.__getitem__, reverse=True)


class Index:
    def __init__(self, n=2000, seed=0):
        rng = random.Random(seed)
        self.rng = rng
        self.passages = [[rng.randrange(1, VOCAB) for _ in range(rng.randint(14, 20))] for _ in range(n)]

    def candidates(self, k=48):
        return self.rng.sample(self.passages, k)

    def query(self):
        return [self.rng.randrange(1, VOCAB) for _ in range(self.rng.randint(3, 8))]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    index = Index()
    service = Reranker(CrossEncoder(), together=args.better)
    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        response = service.rank(index.query(), index.candidates())
        json.dumps({"top": response[:10]})
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} requests, best candidate {response[0]}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
