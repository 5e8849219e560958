"""Masked-language pretraining of a small encoder on product descriptions (word-piece ids)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MASK = 18000, 4


class Corpus:
    def __init__(self, n=4000, length=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(10, VOCAB, (n, length), generator=g)

    def batches(self, size):
        while True:
            order = torch.randperm(len(self.ids))
            for i in range(0, len(order) - size + 1, size):
                yield self.ids[order[i : i + size]]


class Masker:
    def __init__(self, rate=0.15):
        self.rate = rate

    def __call__(self, ids):
        picked = torch.rand(ids.shape) < self.rate
        labels = ids.masked_fill(~picked, -100)
        draw = torch.rand(ids.shape)
        inputs = ids.masked_fill(picked & (draw < 0.8), MASK)
        swap = picked & (draw >= 0.9)
        inputs[swap] = torch.randint(10, VOCAB, (int(swap.sum()),))
        return inputs, labels


class Encoder(nn.Module):
    def __init__(self, dim=192, depth=3, heads=4, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim * 4, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.tok(ids) + self.pos[: ids.shape[1]])


class MlmHead(nn.Module):
    def __init__(self, tok, dim=192):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.decoder = nn.Linear(dim, VOCAB)
        self.decoder.weight = tok.weight

    def forward(self, h):
        return self.decoder(self.norm(F.gelu(self.dense(h))))


class MlmModel(nn.Module):
    def __init__(self, select=False):
        super().__init__()
        self.encoder = Encoder()
        self.head = MlmHead(self.encoder.tok)
        nn.init.normal_(self.encoder.tok.weight, std=0.02)
        self.select = select

    def forward(self, ids, labels):
        h = self.encoder(ids)
        if self.select:
            keep = labels != -100
            return F.cross_entropy(self.head(h[keep]), labels[keep])
        logits = self.head(h)
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    batches = Corpus().batches(5)
    masker = Masker()
    model = MlmModel(select=args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 100))

    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        ids, labels = masker(next(batches))
        loss = model(ids, labels)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step} mlm loss {loss.item():.3f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
