# Semantic search over paper abstracts -- demo backend of our reading group
import argparse
import json
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

N_PAPERS, DIM, VOCAB = 60_000, 128, 6000


class TextEncoder(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 512, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, ids):
        return self.enc(self.tok(ids)).mean(1)


class Index:
    def __init__(self, vectors, better):
        self.vectors = vectors
        self.better = better
        if better:
            self.unit = F.normalize(vectors, dim=1)

    def scores(self, q):
        if self.better:
            return F.normalize(q, dim=1) @ self.unit.t()
        a = F.normalize(q, dim=1)
        b = F.normalize(self.vectors, dim=1)
        return a @ b.t()

    def top(self, q, k=10):
        return self.scores(q).topk(k, dim=1)


class Service:
    def __init__(self, better):
        torch.manual_seed(0)
        self.encoder = TextEncoder().eval()
        self.index = Index(torch.randn(N_PAPERS, DIM) * 2, better)
        self.years = torch.randint(1990, 2025, (N_PAPERS,))

    @torch.inference_mode()
    def handle(self, request):
        q = self.encoder(torch.tensor(request["ids"]))
        val, idx = self.index.top(q)
        years = self.years[idx]
        return [
            {"paper": p, "year": y, "score": round(s, 4)}
            for p, y, s in zip(idx[0].tolist(), years[0].tolist(), val[0].tolist())
        ]


def client(seed=9):
    rng = random.Random(seed)
    while True:
        n = rng.randint(24, 48)
        yield {"ids": [[rng.randrange(VOCAB) for _ in range(n)] for _ in range(2)]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    service = Service(args.better)
    requests = client()
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        req = next(requests)
        t = time.perf_counter()
        hits = service.handle(req)
        times.append(time.perf_counter() - t)
        if len(times) % 200 == 0:
            print(len(times), "best hit", hits[0])

    times_sorted = sorted(times)
    print("p50 %.4f p95 %.4f" % (times_sorted[len(times) // 2], times_sorted[int(len(times) * 0.95)]))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
