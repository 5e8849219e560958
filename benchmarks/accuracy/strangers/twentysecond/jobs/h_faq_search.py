"""Answer search over the FAQ: embeds incoming question batches and looks them up in the index."""

import argparse
import json
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

TERMS = (
    "how do i reset change cancel my order account password address payment card delivery time return "
    "refund gift voucher app notification language invoice size warranty repair contact support"
).split()


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class QuestionEncoder(nn.Module):
    def __init__(self, dim=256, heads=8, depth=4, longest=48, buckets=8000):
        super().__init__()
        self.tok, self.pos = nn.Embedding(buckets + 1, dim, padding_idx=0), nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, 128, bias=False)

    def forward(self, ids):
        keep = ids != 0
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        mask = keep[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        pooled = (x * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)
        return F.normalize(self.out(pooled), dim=1)


class FaqSearch:
    def __init__(self, encoder, answers, digits=3):
        self.encoder = encoder.eval()
        self.digits = digits
        self.index = torch.cat([self.embed(answers[i : i + 64]) for i in range(0, len(answers), 64)]).T.contiguous()

    @staticmethod
    def ids(text):
        return [1 + zlib.crc32(w.encode()) % 8000 for w in text.split()][:48]

    @torch.inference_mode()
    def embed(self, texts):
        rows = [self.ids(t) for t in texts]
        width = max(map(len, rows))
        return self.encoder(torch.tensor([r + [0] * (width - len(r)) for r in rows]))

    @torch.inference_mode()
    def search(self, questions, k=5):
        score, where = (self.embed(questions) @ self.index).topk(k)
        return [
            [{"answer": a, "score": round(s, self.digits)} for a, s in zip(aa, ss)]
            for aa, ss in zip(where.tolist(), score.tolist())
        ]


def sentences(rng, n, low, high):
    return [" ".join(rng.choice(TERMS, size)) for size in rng.integers(low, high, n)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--answers", type=int, default=1500)
    args = parser.parse_args()
    torch.manual_seed(0)

    rng = np.random.default_rng(0)
    service = FaqSearch(QuestionEncoder(), sentences(rng, args.answers, 8, 20), 4 if args.better else 3)
    latency, hits = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        questions = sentences(rng, 16, 10, 16)
        t0 = time.perf_counter()
        hits += sum(r[0]["score"] > 0.5 for r in service.search(questions))
        latency.append(time.perf_counter() - t0)
    p50, p95 = np.percentile(latency, [50, 95]) * 1e3
    print(f"{len(latency)} batches, {hits} confident answers, p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(latency, f)


if __name__ == "__main__":
    main()
