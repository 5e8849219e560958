"""Masked-language-model pre-training of a small encoder on synthetic tokens."""

import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ModelConfig:
    vocab: int = 6000
    dim: int = 160
    heads: int = 4
    layers: int = 3
    length: int = 64
    mask_id: int = 4


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.ff = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class MaskedLM(nn.Module):
    def __init__(self, c, better=False):
        super().__init__()
        self.better = better
        self.tok = nn.Embedding(c.vocab, c.dim)
        self.pos = nn.Parameter(torch.zeros(c.length, c.dim))
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.layers)])
        self.transform = nn.Sequential(nn.Linear(c.dim, c.dim), nn.GELU(), nn.LayerNorm(c.dim))
        self.decoder = nn.Linear(c.dim, c.vocab)

    def forward(self, ids, labels):
        h = self.tok(ids) + self.pos
        for layer in self.layers:
            h = layer(h)
        if self.better:
            keep = labels != -100
            h, labels = h[keep], labels[keep]
        logits = self.decoder(self.transform(h))
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)


class Masker:
    def __init__(self, c, p=0.15):
        self.c, self.p = c, p

    def __call__(self, ids):
        pick = torch.rand(ids.shape) < self.p
        labels = ids.masked_fill(~pick, -100)
        return ids.masked_fill(pick, self.c.mask_id), labels


def token_stream(c, n=200_000):
    g = torch.Generator().manual_seed(9)
    z = torch.rand(n, generator=g).pow(3)
    return (5 + z * (c.vocab - 5)).long()


def train(args):
    torch.manual_seed(0)
    c = ModelConfig()
    stream, masker = token_stream(c), Masker(c)
    model = MaskedLM(c, args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    offsets = torch.arange(c.length)
    times = []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        at = torch.randint(0, len(stream) - c.length, (12, 1))
        ids, labels = masker(stream[at + offsets])
        loss = model(ids, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 20 == 0:
            print("update", len(times), "mlm loss %.3f" % loss.item())
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    times = train(args)
    if args.times:
        json.dump(times, open(args.times, "w"))
