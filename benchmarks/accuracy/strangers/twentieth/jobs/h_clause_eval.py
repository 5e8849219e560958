"""Evaluation of a contract-clause classifier: token-budget batches by length, per-class F1, predictions to JSONL."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES, VOCAB = 15, 6000


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class ClauseClassifier(nn.Module):
    def __init__(self, dim=192, layers=4):
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCAB, dim), nn.Embedding(512, dim)
        self.layers = nn.ModuleList(Layer(dim, 4) for _ in range(layers))
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, ids, lengths):
        valid = torch.arange(ids.shape[1])[None] < lengths[:, None]
        x = self.emb(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, valid[:, None, None])
        pooled = (x * valid[..., None]).sum(1) / lengths[:, None]
        return self.head(pooled)


def make_corpus(n, seed):
    rng = np.random.default_rng(seed)
    words = [f"w{i:04d}" for i in range(5000)]
    lengths = np.clip(rng.lognormal(3.8, 0.6, n), 8, 300).astype(int)
    texts = [" ".join(words[j] for j in rng.integers(0, 5000, m)) for m in lengths]
    return texts, rng.integers(0, CLASSES, n).tolist(), {w: i + 2 for i, w in enumerate(words)}


def plan_batches(token_lists, budget):
    """Indices by length, cut so that no padded batch holds more than `budget` tokens."""
    order = sorted(range(len(token_lists)), key=lambda i: len(token_lists[i]))
    plan, current = [], []
    for i in order:
        if current and (len(current) + 1) * len(token_lists[i]) > budget:
            plan.append(current)
            current = []
        current.append(i)
    return plan + [current]


class F1Meter:
    def __init__(self):
        self.confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.long)

    def update(self, predicted, target):
        self.confusion += torch.bincount(target * CLASSES + predicted, minlength=CLASSES**2).view(CLASSES, CLASSES)

    def macro(self):
        tp = self.confusion.diag().float()
        return float((2 * tp / (self.confusion.sum(0) + self.confusion.sum(1)).clamp(min=1)).mean())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    texts, labels, vocab = make_corpus(2000, 0)
    tokens = [[vocab.get(w, 1) for w in text.split()] for text in texts]
    plan = plan_batches(tokens, budget=1536)
    np.random.default_rng(0).shuffle(plan)
    model = ClauseClassifier().eval()
    meter = F1Meter()

    times = []
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "predictions.jsonl"), "w") as out:
        start = last = time.perf_counter()
        while last - start < args.seconds:
            members = plan[len(times) % len(plan)]
            lengths = torch.tensor([len(tokens[i]) for i in members])
            ids = nn.utils.rnn.pad_sequence([torch.tensor(tokens[i]) for i in members], batch_first=True)
            target = torch.tensor([labels[i] for i in members])
            with torch.inference_mode():
                confidence, predicted = model(ids, lengths).softmax(-1).max(-1)
            meter.update(predicted, target)
            for i, p, c in zip(members, predicted.tolist(), confidence.tolist()):
                out.write(json.dumps({"clause": i, "label": p, "confidence": round(c, 4)}) + "\n")
            if len(times) % 20 == 0:
                print(f"batch {len(times)} macro F1 {meter.macro():.3f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
