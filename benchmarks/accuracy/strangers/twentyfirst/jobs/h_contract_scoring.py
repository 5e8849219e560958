"""Nightly scoring of contract clauses for risk: bf16 encoder, clauses grouped by length."""

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, PAD, MAX_LEN, TOKENS_PER_BATCH = 10_000, 0, 256, 4096


def make_clauses(n, seed=0):
    rng = random.Random(seed)
    out = []
    for number in range(n):
        length = min(MAX_LEN, max(12, int(rng.lognormvariate(4.3, 0.5))))
        out.append((number, [rng.randint(1, VOCAB - 1) for _ in range(length)]))
    return out


def batches_by_length(clauses, budget):
    """Sorts by length and cuts so that a padded batch holds about `budget` tokens."""
    batch = []
    for clause in sorted(clauses, key=lambda c: len(c[1])):
        if batch and (len(batch) + 1) * len(clause[1]) > budget:
            yield batch
            batch = []
        batch.append(clause)
    if batch:
        yield batch


def pad(batch):
    width = max(len(ids) for _, ids in batch)
    return torch.tensor([ids + [PAD] * (width - len(ids)) for _, ids in batch])


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(h.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class RiskEncoder(nn.Module):
    def __init__(self, dim=512, depth=4, heads=8):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.position = nn.Parameter(torch.randn(MAX_LEN, dim) * 0.02)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, ids):
        keep = ids != PAD
        mask = torch.zeros(ids.shape[0], 1, 1, ids.shape[1], dtype=self.position.dtype)
        mask.masked_fill_(~keep[:, None, None], -1e4)
        x = self.embed(ids) + self.position[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x) * keep[..., None]
        return self.head(x.sum(1) / keep.sum(1, keepdim=True)).float().softmax(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    model = RiskEncoder().to(torch.bfloat16).eval()
    times, scored, night = [], 0, 0
    start = last = time.perf_counter()
    with torch.inference_mode():
        while last - start < args.seconds:
            clauses = make_clauses(1500, seed=night)
            risk = torch.zeros(len(clauses), 3)
            for batch in batches_by_length(clauses, TOKENS_PER_BATCH):
                numbers = torch.tensor([n for n, _ in batch])
                risk[numbers] = model(pad(batch))
                scored += len(batch)
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if now - start > args.seconds:
                    break
            night += 1
            print(f"run {night}: {scored} clauses, mean risk {risk[:, 2].mean().item():.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
