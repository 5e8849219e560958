"""Semantic search service: encodes user questions and returns the nearest catalogue articles."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class QuestionEncoder(nn.Module):
    def __init__(self, vocab=20000, width=192, dim=256, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(width, dim)

    def forward(self, ids):
        pad = ids == 0
        h = self.body(self.embed(ids), src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.out((h * keep).sum(1) / keep.sum(1))


class Index:
    """Cosine-similarity index over the article embeddings."""

    def __init__(self, articles, better):
        self.better = better
        self.articles = F.normalize(articles, dim=-1) if better else articles

    def query(self, q, k):
        q = F.normalize(q, dim=-1)
        if self.better:
            scores = q @ self.articles.T
        else:
            scores = q @ F.normalize(self.articles, dim=-1).T
        return scores.topk(k, dim=-1)


class SearchService:
    def __init__(self, n_articles, dim, better):
        self.encoder = QuestionEncoder(dim=dim).eval()
        self.index = Index(torch.randn(n_articles, dim), better)
        self.titles = [f"article-{i:06d}" for i in range(n_articles)]

    @torch.inference_mode()
    def handle(self, ids, k=10):
        score, where = self.index.query(self.encoder(ids), k)
        return [
            [{"title": self.titles[j], "score": round(s, 4)} for s, j in zip(ss, jj)]
            for ss, jj in zip(score.tolist(), where.tolist())
        ]


def traffic(batch=8, longest=24, vocab=20000):
    """Questions of varying length, sorted into a padded batch."""
    while True:
        lengths = torch.randint(5, longest + 1, (batch,))
        ids = torch.randint(1, vocab, (batch, int(lengths.max())))
        ids[torch.arange(ids.shape[1])[None] >= lengths[:, None]] = 0
        yield ids


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--articles", type=int, default=80_000)
    args = ap.parse_args()

    torch.manual_seed(11)
    service = SearchService(args.articles, 256, args.better)
    times, begin = [], time.perf_counter()
    for ids in traffic():
        t0 = time.perf_counter()
        if t0 - begin > args.seconds:
            break
        hits = service.handle(ids)
        times.append(time.perf_counter() - t0)
        if len(times) % 100 == 0:
            best = hits[0][0]
            print(f"request {len(times)}: {best['title']} ({best['score']})", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
