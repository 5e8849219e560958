"""Masked-residue pretraining of a small protein encoder with k-mer vocabulary."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, MASK, LENGTH = 8000, 1, 128


class Encoder(nn.Module):
    def __init__(self, d=96, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(0.02 * torch.randn(LENGTH, d))
        layer = nn.TransformerEncoderLayer(
            d, heads, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        return self.norm(self.enc(self.tok(ids) + self.pos))


class MaskedModel(nn.Module):
    def __init__(self, picked_only):
        super().__init__()
        self.encoder = Encoder()
        self.dense = nn.Linear(96, 96)
        self.decoder = nn.Linear(96, VOCAB)
        self.picked_only = picked_only

    def forward(self, ids, labels):
        h = self.encoder(ids)
        if self.picked_only:
            keep = labels != -100
            h, labels = h[keep], labels[keep]
        logits = self.decoder(F.gelu(self.dense(h)))
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)


def corrupt(ids, rate=0.15):
    labels = ids.clone()
    hit = torch.rand(ids.shape) < rate
    labels[~hit] = -100
    fate = torch.rand(ids.shape)
    ids = torch.where(hit & (fate < 0.8), MASK, ids)
    rnd = torch.randint(2, VOCAB, ids.shape)
    return torch.where(hit & (fate > 0.9), rnd, ids), labels


def proteins(n=512):
    start = torch.randint(2, VOCAB, (n, 1))
    return (start + 37 * torch.arange(LENGTH)) % (VOCAB - 2) + 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--batch", type=int, default=4)
    args = ap.parse_args()
    torch.manual_seed(0)
    model = MaskedModel(args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data, times = proteins(), []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        ids, labels = corrupt(data[torch.randint(len(data), (args.batch,))])
        loss = model(ids, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"mlm loss {loss.item():.3f} after {len(times)} steps")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
