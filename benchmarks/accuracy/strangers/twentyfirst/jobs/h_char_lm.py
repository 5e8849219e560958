"""Character-level language model on a synthetic play, GPT style, bf16 autocast."""

import argparse
import json
import math
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT, BATCH = 128, 16
SPEAKERS = ["DUKE", "NURSE", "CLOWN", "PAGE", "WIDOW"]
LINES = [
    "good morrow to thee",
    "the night is long and cold",
    "what news from the coast?",
    "I have seen it with mine eyes",
    "then let us drink, and sing",
    "peace, fool!",
]


def play(lines=20_000, seed=0):
    rng = random.Random(seed)
    return "\n".join(f"{rng.choice(SPEAKERS)}: {rng.choice(LINES)}, {rng.choice(LINES)}." for _ in range(lines))


class CharData:
    def __init__(self, text):
        alphabet = sorted(set(text))
        self.vocab = len(alphabet)
        index = {c: i for i, c in enumerate(alphabet)}
        self.ids = torch.tensor([index[c] for c in text])
        self.window = torch.arange(CONTEXT + 1)

    def batch(self):
        at = torch.randint(0, len(self.ids) - CONTEXT - 1, (BATCH, 1))
        rows = self.ids[at + self.window]
        return rows[:, :-1], rows[:, 1:]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class CharLM(nn.Module):
    def __init__(self, vocab, dim=384, depth=4, heads=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(CONTEXT, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cosine(step, warmup=50, total=4000):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    data = CharData(play())
    model = CharLM(data.vocab)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine)

    times, step = [], 0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        ids, target = data.batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        step += 1
        times.append(time.perf_counter() - began)
        if step % 25 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
