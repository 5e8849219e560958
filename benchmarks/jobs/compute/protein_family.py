"""Classifies protein sequences into families with a small pre-norm transformer."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

AMINO = "ACDEFGHIKLMNPQRSTVWY"
PAD = len(AMINO)
FAMILIES = 32
MAX_LEN = 512


class Families:
    """Random sequences; each family has a motif planted a few times."""

    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.motifs = torch.randint(0, PAD, (FAMILIES, 9), generator=self.g)

    def batch(self, size):
        family = torch.randint(0, FAMILIES, (size,), generator=self.g)
        lengths = torch.randint(420, MAX_LEN + 1, (size,), generator=self.g)
        tokens = torch.randint(0, PAD, (size, MAX_LEN), generator=self.g)
        for row in range(size):
            for _ in range(4):
                at = int(torch.randint(0, int(lengths[row]) - 9, (), generator=self.g))
                tokens[row, at : at + 9] = self.motifs[family[row]]
        padding = torch.arange(MAX_LEN)[None] >= lengths[:, None]
        tokens[padding] = PAD
        return tokens, padding, family


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, better):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.better = better

    def forward(self, x, padding):
        h = self.norm1(x)
        if self.better:
            h, _ = self.attn(h, h, h, key_padding_mask=padding, need_weights=False)
        else:
            h, _ = self.attn(h, h, h, key_padding_mask=padding)
        x = x + h
        return x + self.mlp(self.norm2(x))


class FamilyModel(nn.Module):
    def __init__(self, dim=128, depth=3, heads=8, better=False):
        super().__init__()
        self.embed = nn.Embedding(PAD + 1, dim, padding_idx=PAD)
        self.position = nn.Parameter(torch.randn(1, MAX_LEN, dim) * 0.02)
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads, better) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, FAMILIES)

    def forward(self, tokens, padding):
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x, padding)
        x = self.norm(x).masked_fill(padding[..., None], 0)
        pooled = x.sum(1) / (~padding).sum(1, keepdim=True)
        return self.head(pooled)


def learning_rate(step, base=1e-3, warmup=30):
    return base * min(1.0, (step + 1) / warmup)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    data = Families()
    model = FamilyModel(better=args.better)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)

    times, step, accuracy = [], 0, 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        tokens, padding, family = data.batch(4)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        logits = model(tokens, padding)
        loss = F.cross_entropy(logits, family)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        accuracy = 0.95 * accuracy + 0.05 * (logits.argmax(1) == family).float().mean().item()
        step += 1
        times.append(time.perf_counter() - began)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f} accuracy {accuracy:.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
