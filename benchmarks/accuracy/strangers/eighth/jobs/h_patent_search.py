"""Prior art search: a page of queries is embedded and compared with all patents, best 20 each."""

import argparse
import json
import time
from collections import deque

import torch
from torch import nn
import torch.nn.functional as F

N_DOCS = 60_000
DIM = 256


class QueryEncoder(nn.Module):
    def __init__(self, vocab=8000, d=256, layers=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(64, d) * 0.02)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(layers))
        self.proj = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(layers)
        )
        self.n1 = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.n2 = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))

    def forward(self, ids):
        b, t = ids.shape
        h = self.tok(ids) + self.pos[:t]
        for qkv, proj, mlp, n1, n2 in zip(self.qkv, self.proj, self.mlp, self.n1, self.n2):
            q, k, v = qkv(n1(h)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v)
            h = h + proj(a.transpose(1, 2).reshape(b, t, -1))
            h = h + mlp(n2(h))
        return F.normalize(h.mean(1), dim=1)


class Index:
    def __init__(self, n, d):
        self.vec = F.normalize(torch.randn(n, d), dim=1)
        self.year = torch.randint(1980, 2025, (n,))

    def best(self, q, k):
        return (q @ self.vec.T).topk(k, dim=1)


class Search:
    def __init__(self):
        torch.manual_seed(0)
        self.enc = QueryEncoder().eval()
        self.index = Index(N_DOCS, DIM)

    @torch.inference_mode()
    def page(self, ids, k=20):
        score, doc = self.index.best(self.enc(ids), k)
        years = self.index.year[doc]
        return [
            [{"doc": d, "score": s, "year": y} for d, s, y in zip(*row)]
            for row in zip(doc.tolist(), score.tolist(), years.tolist())
        ]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    search = Search()
    g = torch.Generator().manual_seed(1)
    walls, recent = [], deque(maxlen=50)
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        ids = torch.randint(1, 8000, (16, 40), generator=g)
        t = time.perf_counter()
        hits = search.page(ids)
        dt = time.perf_counter() - t
        walls.append(dt)
        recent.append(dt)
        if len(walls) % 25 == 0:
            print(f"{16 * len(walls)} queries, {1e3 * sum(recent) / len(recent):.1f} ms per page, top {hits[0][0]}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
