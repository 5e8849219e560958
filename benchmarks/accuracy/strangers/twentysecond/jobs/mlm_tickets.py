"""Masked-language-model pretraining on support-ticket text (word-piece ids)."""

import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VOCAB = 9000
MASK_ID = 3
SPECIAL = 5


class TicketCorpus(Dataset):
    """Zipf-distributed ids with a weak bigram structure."""

    def __init__(self, n=4000, length=64, seed=11):
        rng = np.random.default_rng(seed)
        ids = rng.zipf(1.25, size=(n, length)) % (VOCAB - SPECIAL) + SPECIAL
        follow = rng.integers(SPECIAL, VOCAB, size=VOCAB)
        glued = rng.random((n, length - 1)) < 0.3
        ids[:, 1:] = np.where(glued, follow[ids[:, :-1]], ids[:, 1:])
        self.ids = torch.from_numpy(ids.astype(np.int64))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


class MaskingCollator:
    def __init__(self, rate=0.15, seed=0):
        self.rate = rate
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        ids = torch.stack(rows)
        picked = torch.rand(ids.shape, generator=self.gen) < self.rate
        labels = ids.masked_fill(~picked, -100)
        kind = torch.rand(ids.shape, generator=self.gen)
        inputs = ids.masked_fill(picked & (kind < 0.8), MASK_ID)
        noise = torch.randint(SPECIAL, VOCAB, ids.shape, generator=self.gen)
        inputs = torch.where(picked & (kind > 0.9), noise, inputs)
        return inputs, labels


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class TicketBert(nn.Module):
    def __init__(self, opt, dim=128, layers=3, heads=4, length=64):
        super().__init__()
        self.opt = opt
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.decoder = nn.Linear(dim, VOCAB)
        self.decoder.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, ids, labels):
        h = self.tok(ids) + self.pos
        for block in self.blocks:
            h = block(h)
        h, labels = h.flatten(0, 1), labels.flatten()
        if self.opt.better:
            keep = (labels != -100).nonzero().squeeze(1)
            h, labels = h[keep], labels[keep]
        scores = self.decoder(self.transform(h))
        return F.cross_entropy(scores, labels, ignore_index=-100)


def schedule(step, warmup=60, total=5000):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / total)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(
        TicketCorpus(), batch_size=opt.batch, shuffle=True, drop_last=True, collate_fn=MaskingCollator()
    )
    model = TicketBert(opt)
    optim = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(optim, schedule)

    times, step = [], 0
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for ids, labels in loader:
            loss = model(ids, labels)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            sched.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= opt.seconds:
                break
    print(f"done after {step} steps, loss {loss.item():.4f}")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
