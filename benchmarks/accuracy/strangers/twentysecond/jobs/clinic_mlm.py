"""Masked-token pretraining of a small encoder on clinical notes."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 6000
MASK, FIRST = 3, 10
SPAN = 96


def notes(n=2000, seed=4):
    g = torch.Generator().manual_seed(seed)
    zipf = 1.0 / torch.arange(1, VOCAB - FIRST + 1)
    return FIRST + torch.multinomial(zipf, n * SPAN, replacement=True, generator=g).view(n, SPAN)


class Masker:
    def __init__(self, rate=0.15, seed=0):
        self.rate = rate
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, ids):
        chosen = torch.rand(ids.shape, generator=self.g) < self.rate
        labels = ids.masked_fill(~chosen, -100)
        return ids.masked_fill(chosen, MASK), labels


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class NoteEncoder(nn.Module):
    def __init__(self, dim=128, heads=4, depth=3):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(SPAN, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        return self.norm(self.blocks(self.tok(ids) + self.pos))


class MaskedHead(nn.Module):
    def __init__(self, embedding, dim=128, select=False):
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)
        self.weight = embedding.weight
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        self.select = select

    def forward(self, hidden, labels):
        if self.select:
            chosen = labels != -100
            hidden, labels = hidden[chosen], labels[chosen]
        scores = F.linear(self.norm(F.gelu(self.dense(hidden))), self.weight, self.bias)
        return F.cross_entropy(scores.view(-1, VOCAB), labels.view(-1), ignore_index=-100)


def warm(step, peak=3e-4, ramp=200):
    return peak * min(1.0, (step + 1) / ramp)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)

    corpus = notes()
    masker = Masker()
    encoder = NoteEncoder()
    nn.init.normal_(encoder.tok.weight, std=0.02)
    head = MaskedHead(encoder.tok, select=args.better)
    params = list({id(p): p for m in (encoder, head) for p in m.parameters()}.values())
    optimizer = torch.optim.AdamW(params, lr=3e-4, fused=True)
    order = torch.Generator().manual_seed(2)

    times, step, average = [], 0, 0.0
    begin = time.perf_counter()
    done = False
    while not done:
        for idx in torch.randperm(len(corpus), generator=order).split(args.batch):
            t0 = time.perf_counter()
            ids, labels = masker(corpus[idx])
            loss = head(encoder(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = warm(step)
            optimizer.step()
            step += 1
            average += loss.detach()
            if step % 50 == 0:
                print(f"step {step} loss {average.item() / 50:.3f}")
                average = 0.0
            times.append(time.perf_counter() - t0)
            if time.perf_counter() - begin > args.seconds:
                done = True
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
