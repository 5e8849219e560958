"""Masked-token pretraining on DNA windows with a custom attention block."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, fused=False):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.fused = fused

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
            weights = torch.softmax(scores, dim=-1)
            y = weights @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, fused):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads, fused)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class DNAModel(nn.Module):
    def __init__(self, dim=64, depth=1, heads=4, length=1024, fused=False):
        super().__init__()
        self.tokens = nn.Embedding(6, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads, fused) for _ in range(depth)])
        self.head = nn.Linear(dim, 6)

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.pos[: ids.shape[1]]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    genome = torch.randint(0, 4, (500_000,))
    length, batch, mask_id = 1024, 2, 5
    model = DNAModel(length=length, fused=args.better)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        starts = torch.randint(0, len(genome) - length, (batch,))
        target = torch.stack([genome[s : s + length] for s in starts.tolist()])
        mask = torch.rand(target.shape) < 0.15
        logits = model(target.masked_fill(mask, mask_id))
        loss = F.cross_entropy(logits[mask], target[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
