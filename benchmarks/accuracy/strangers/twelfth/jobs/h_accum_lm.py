"""Character-level language model with gradient accumulation, validation and snapshots."""

import argparse
import math
import os
import random
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    context: int = 96
    dim: int = 192
    heads: int = 6
    layers: int = 3
    micro: int = 8
    accumulate: int = 2
    lr: float = 6e-4
    eval_every: int = 60
    save_every: int = 60


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class CharLM(nn.Module):
    def __init__(self, c, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, c.dim), nn.Embedding(c.context, c.dim)
        self.blocks = nn.Sequential(*[Block(c) for _ in range(c.layers)])
        self.head = nn.Linear(c.dim, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        return self.head(self.blocks(x))


def write_text(n=60_000, seed=0):
    rng = random.Random(seed)
    syll = ["ka", "to", "mi", "re", "sun", "la", "or", "eth", "in", "vo"]
    out = []
    while len(out) < n // 4:
        out.append("".join(rng.choices(syll, k=rng.randint(1, 3))) + rng.choice([" ", " ", ", ", ".\n"]))
    return "".join(out)


class SlowTrainer:
    def __init__(self, config, folder):
        self.c, self.folder = config, folder
        text = write_text()
        chars = sorted(set(text))
        ids = torch.tensor([chars.index(ch) for ch in text])
        cut = int(0.95 * len(ids))
        self.train_ids, self.val_ids = ids[:cut], ids[cut:]
        self.model = CharLM(config, len(chars))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=config.lr, betas=(0.9, 0.95))

    def batch(self, ids):
        s = torch.randint(0, len(ids) - self.c.context - 1, (self.c.micro,))
        block = ids[s[:, None] + torch.arange(self.c.context + 1)]
        return block[:, :-1], block[:, 1:]

    def loss(self, x, y):
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())

    def optimizer_step(self, n):
        for group in self.opt.param_groups:
            group["lr"] = self.c.lr * min(1, n / 20) * (0.55 + 0.45 * math.cos(min(n, 1000) / 1000 * math.pi))
        total = 0.0
        for _ in range(self.c.accumulate):
            part = self.loss(*self.batch(self.train_ids)) / self.c.accumulate
            part.backward()
            total += part.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        return total

    @torch.no_grad()
    def evaluate(self, batches=2):
        return sum(self.loss(*self.batch(self.val_ids)).item() for _ in range(batches)) / batches

    def fit(self, seconds):
        laps, n = [], 0
        t0 = prev = time.perf_counter()
        while prev - t0 < seconds:
            n += 1
            loss = self.optimizer_step(n)
            if n % self.c.eval_every == 0:
                print(f"step {n} train {loss:.3f} val {self.evaluate():.3f}")
            if n % self.c.save_every == 0:
                torch.save(self.model.state_dict(), os.path.join(self.folder, "snapshot.pt"))
            now = time.perf_counter()
            laps.append(now - prev)
            prev = now
        return laps


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        laps = SlowTrainer(Config(), folder).fit(args.seconds)
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)
