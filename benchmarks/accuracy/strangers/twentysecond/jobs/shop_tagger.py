"""Tagging service of the web shop: assigns categories to product texts without training on them."""

import argparse
import json
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CATEGORIES = (
    "garden tools",
    "running shoes",
    "office chairs",
    "kitchen knives",
    "board games",
    "phone cases",
    "desk lamps",
    "winter jackets",
    "bike parts",
    "pet food",
    "baby toys",
    "headphones",
    "tea and coffee",
    "wall art",
    "camping gear",
    "hand cream",
    "car accessories",
    "fishing rods",
    "notebooks",
    "sun glasses",
)
TEMPLATE = "a product from the category {}"
STOCK = (
    "light sturdy black steel cotton new set of two large small with case for home outdoor use soft grip "
    "classic modern family travel water proof organic premium"
).split()


def tokens(text):
    return [2 + zlib.crc32(w.encode()) % 8000 for w in text.lower().split()]


class Layer(nn.Module):
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


class TextTower(nn.Module):
    def __init__(self, dim=256, heads=8, depth=5, longest=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(8002, dim, padding_idx=0), nn.Embedding(longest, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, 128, bias=False)

    def forward(self, ids):
        keep = ids != 0
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, keep[:, None, None])
        x = (x * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)
        return F.normalize(self.out(x), dim=-1)


class Tagger:
    def __init__(self, tower, categories, keep=False):
        self.tower = tower.eval()
        self.categories = categories
        self.anchors = self.embed([TEMPLATE.format(c) for c in categories]) if keep else None

    @torch.inference_mode()
    def embed(self, texts):
        rows = [tokens(t) for t in texts]
        width = max(map(len, rows))
        return self.tower(torch.tensor([r + [0] * (width - len(r)) for r in rows]))

    @torch.inference_mode()
    def tag(self, texts, top=3):
        query = self.embed(texts)
        anchors = self.anchors
        if anchors is None:
            anchors = self.embed([TEMPLATE.format(c) for c in self.categories])
        score, which = (100 * query @ anchors.T).softmax(-1).topk(top)
        return [
            [(self.categories[c], round(s, 3)) for c, s in zip(cs, ss)]
            for cs, ss in zip(which.tolist(), score.tolist())
        ]


def requests(seed=0):
    rng = np.random.default_rng(seed)
    while True:
        yield [" ".join(rng.choice(STOCK, rng.integers(10, 24))) for _ in range(rng.integers(3, 8))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    service = Tagger(TextTower(), CATEGORIES, keep=args.better)
    latency, answered = [], 0
    begin = time.perf_counter()
    for texts in requests():
        t0 = time.perf_counter()
        if t0 - begin > args.seconds:
            break
        answered += len(service.tag(texts))
        latency.append(time.perf_counter() - t0)
    p50, p95 = np.percentile(latency, [50, 95]) * 1e3
    print(f"{len(latency)} requests, {answered} texts, p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(latency, f)


if __name__ == "__main__":
    main()
