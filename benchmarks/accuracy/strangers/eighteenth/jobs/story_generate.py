"""Sample short stories from a small GPT: one request = one prompt continued by 24 tokens."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, CONTEXT = 2048, 256


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cache=None):
        x = x + self.attn(self.ln1(x), cache)
        return x + self.mlp(self.ln2(x))


class StoryGPT(nn.Module):
    def __init__(self, dim=128, depth=3, heads=4):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim), nn.Embedding(CONTEXT, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCAB, bias=False)

    def new_cache(self):
        return [{} for _ in self.blocks]

    def forward(self, ids, cache=None, offset=0):
        x = self.tok(ids) + self.pos(torch.arange(offset, offset + ids.shape[1]))
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[i])
        return self.head(self.norm(x[:, -1]))


def pick(logits, k=40):
    top, where = logits.topk(k)
    return where.gather(1, torch.multinomial(F.softmax(top / 0.8, dim=-1), 1))


@torch.inference_mode()
def generate(model, ids, new_tokens):
    for _ in range(new_tokens):
        logits = model(ids[:, -CONTEXT:])
        ids = torch.cat([ids, pick(logits)], dim=1)
    return ids


@torch.inference_mode()
def generate_incremental(model, ids, new_tokens):
    cache = model.new_cache()
    fresh = ids
    for _ in range(new_tokens):
        logits = model(fresh, cache, ids.shape[1] - fresh.shape[1])
        fresh = pick(logits)
        ids = torch.cat([ids, fresh], dim=1)
    return ids


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = StoryGPT().eval()
    run = generate_incremental if args.better else generate
    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        prompt = torch.randint(0, VOCAB, (1, 96))
        story = run(model, prompt, 24)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} stories, last token {int(story[0, -1])}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
