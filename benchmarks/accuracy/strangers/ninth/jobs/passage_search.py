"""Dense passage search: encode a batch of queries, rank all passages, return the first 20."""

import argparse
import json
import time

import torch
from torch import nn


class QueryEncoder(nn.Module):
    def __init__(self, vocab=8000, dim=256, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        block = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, 96)

    def forward(self, ids):
        h = self.body(self.emb(ids))
        m = (ids != 0).unsqueeze(-1)
        return nn.functional.normalize(self.proj((h * m).sum(1) / m.sum(1)), dim=-1)


class Index:
    def __init__(self, vectors, partial):
        self.vectors = vectors
        self.partial = partial

    def search(self, q, k):
        sims = q @ self.vectors.T
        if self.partial:
            best = sims.topk(k, dim=1)
            return best.indices, best.values
        order = torch.argsort(sims, dim=1, descending=True)
        ids = order[:, :k]
        return ids, sims.gather(1, ids)


def query_stream(batch, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        ids = torch.randint(1, 8000, (batch, 24), generator=g)
        n = torch.randint(6, 25, (batch,), generator=g)
        ids[torch.arange(24)[None] >= n[:, None]] = 0
        yield ids


def run(a):
    torch.manual_seed(31)
    enc = QueryEncoder().eval()
    passages = nn.functional.normalize(torch.randn(a.passages, 96), dim=-1)
    index = Index(passages, a.better)
    took, hits = [], 0
    begin = time.perf_counter()
    for ids in query_stream(a.batch, 5):
        t = time.perf_counter()
        if t - begin > a.seconds:
            break
        with torch.inference_mode():
            top, score = index.search(enc(ids), 20)
        hits += int((score[:, 0] > 0.3).sum())
        answer = [list(zip(i, s)) for i, s in zip(top.tolist(), score.tolist())]
        took.append(time.perf_counter() - t)
    print(f"{len(took)} batches, {hits} confident, sample {answer[0][:2]}")
    return took


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--passages", type=int, default=30000)
    a = p.parse_args()
    took = run(a)
    if a.times:
        with open(a.times, "w") as fh:
            json.dump(took, fh)
