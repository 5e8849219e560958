"""Product search: query encoder + cosine ranking of the catalogue, requests one by one."""

import argparse
import json
import time
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Hit:
    sku: int
    score: float


class QueryEncoder(nn.Module):
    def __init__(self, vocab=8000, dim=96, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.enc(self.emb(ids)).mean(1)


class Catalogue:
    def __init__(self, vectors):
        self.vectors = vectors

    def scores(self, q):
        return F.cosine_similarity(q, self.vectors, dim=-1)


class UnitCatalogue(Catalogue):
    def __init__(self, vectors):
        super().__init__(F.normalize(vectors, dim=-1))

    def scores(self, q):
        return self.vectors @ F.normalize(q, dim=-1).squeeze(0)


class SearchService:
    def __init__(self, encoder, catalogue, k=20):
        self.encoder, self.catalogue, self.k = encoder.eval(), catalogue, k
        self.served = 0

    @torch.inference_mode()
    def search(self, queries, stock):
        """Each query gets its k best products that are in stock."""
        pages = []
        for ids in queries:
            q = self.encoder(ids[None])
            s = self.catalogue.scores(q).masked_fill(~stock, -1.0)
            best = s.topk(self.k)
            pages.append([Hit(i, v) for i, v in zip(best.indices.tolist(), best.values.tolist())])
        self.served += len(queries)
        return pages


class Traffic:
    def __init__(self, products, seed=5):
        self.g = torch.Generator().manual_seed(seed)
        self.stock = torch.rand(products, generator=self.g) > 0.2

    def request(self):
        words = int(torch.randint(8, 24, (), generator=self.g))
        n = int(torch.randint(1, 4, (), generator=self.g))
        flip = torch.randint(0, len(self.stock), (5,), generator=self.g)
        self.stock[flip] = ~self.stock[flip]
        return torch.randint(1, 8000, (n, words), generator=self.g), self.stock


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    p.add_argument("--products", type=int, default=15_000)
    a = p.parse_args()
    torch.manual_seed(0)
    vectors = torch.randn(a.products, 96) * torch.rand(a.products, 1)
    service = SearchService(QueryEncoder(), (UnitCatalogue if a.better else Catalogue)(vectors))
    traffic = Traffic(a.products)
    latency, end = [], time.perf_counter() + a.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        service.search(*traffic.request())
        latency.append(time.perf_counter() - t0)
    top = sorted(latency)
    print(
        f"{service.served} queries, p50 {top[len(top) // 2] * 1e3:.1f} ms, p99 {top[int(len(top) * 0.99)] * 1e3:.1f} ms"
    )
    if a.times:
        with open(a.times, "w") as f:
            json.dump(latency, f)


if __name__ == "__main__":
    main()
