"""Character-level language model on generated text."""

import argparse
import json
import random
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    dim: int = 256
    heads: int = 4
    layers: int = 2
    context: int = 96
    batch: int = 8
    lr: float = 4e-4


def make_text(n=60_000, seed=0):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in range(400)]
    return " ".join(rng.choices(words, weights=[1 / (i + 1) for i in range(400)], k=n))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.ln1, self.ln2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.proj = nn.Linear(c.dim, c.dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.ReLU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class CharLM(nn.Module):
    def __init__(self, c, vocab):
        super().__init__()
        self.tok = nn.Embedding(vocab, c.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(c.context, c.dim))
        self.blocks = nn.Sequential(*[Block(c) for _ in range(c.layers)])
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, vocab)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tok(ids) + self.pos)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    c = Config()
    text = make_text()
    chars = sorted(set(text))
    lookup = {ch: i for i, ch in enumerate(chars)}
    data = torch.tensor([lookup[ch] for ch in text])
    train, held = data[: int(0.95 * len(data))], data[int(0.95 * len(data)) :]
    window = torch.arange(c.context + 1)
    model = CharLM(c, len(chars))
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, fused=True)

    def loss_of(source, n):
        rows = source[torch.randint(0, len(source) - c.context - 1, (n, 1)) + window]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    history, times = [], []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        loss = loss_of(train, c.batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        if len(history) % 20 == 0:
            print(f"step {len(history)} loss {sum(history[-20:]) / 20:.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    model.eval()
    with torch.no_grad():
        print("held-out loss", round(loss_of(held, 32).item(), 3))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
