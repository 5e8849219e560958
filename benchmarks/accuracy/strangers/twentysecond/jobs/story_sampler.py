"""Writes continuations for story openings with a small decoder-only model."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], 2)
            v = torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.proj(y.transpose(1, 2).reshape(b, t, d)), (k, v)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, past=None):
        y, kv = self.attn(self.n1(x), past)
        x = x + y
        return x + self.mlp(self.n2(x)), kv


class StoryModel(nn.Module):
    def __init__(self, vocab=4096, dim=256, heads=8, depth=4, context=256):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids, past=None):
        offset = 0 if past is None else past[0][0].shape[2]
        x = self.tok(ids) + self.pos.weight[offset : offset + ids.shape[1]]
        present = []
        for i, layer in enumerate(self.layers):
            x, kv = layer(x, None if past is None else past[i])
            present.append(kv)
        return F.linear(self.norm(x[:, -1]), self.tok.weight), present


class Writer:
    def __init__(self, model, temperature=0.9, top_k=40, seed=5, reuse=False):
        self.model = model.eval()
        self.temperature, self.top_k = temperature, top_k
        self.rng = torch.Generator().manual_seed(seed)
        self.reuse = reuse

    def pick(self, logits):
        best, where = (logits / self.temperature).topk(self.top_k)
        choice = torch.multinomial(best.softmax(-1), 1, generator=self.rng)
        return where.gather(-1, choice)

    @torch.inference_mode()
    def write(self, prompt, length):
        ids = prompt
        logits, state = self.model(ids)
        for i in range(length):
            nxt = self.pick(logits)
            ids = torch.cat([ids, nxt], 1)
            if i == length - 1:
                break
            if self.reuse:
                logits, state = self.model(nxt, state)
            else:
                logits, _ = self.model(ids)
        return ids[:, prompt.shape[1] :]


def openings(seed=0, vocab=4096):
    g = torch.Generator().manual_seed(seed)
    while True:
        size = int(torch.randint(36, 56, (1,), generator=g))
        yield torch.randint(vocab, (1, size), generator=g)


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--length", type=int, default=24)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    writer = Writer(StoryModel(), reuse=args.better)
    took, written = [], 0
    stop = time.perf_counter() + args.seconds
    for prompt in openings():
        began = time.perf_counter()
        if began > stop:
            break
        story = writer.write(prompt, args.length)
        written += story.numel()
        took.append(time.perf_counter() - began)
    print(f"{len(took)} stories, {written} tokens, {written / sum(took):.0f} tokens/s")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(took, f)


if __name__ == "__main__":
    main()
