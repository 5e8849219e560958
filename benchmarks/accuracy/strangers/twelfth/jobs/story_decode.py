"""Serve short continuations from a small causal language model."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS, CTX = 2000, 192, 6, 4, 128


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM)), (k, v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, past=None):
        a, kv = self.attn(self.n1(x), past)
        x = x + a
        return x + self.mlp(self.n2(x)), kv


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(CTX, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, past=None):
        start = 0 if past is None else past[0][0].size(2)
        x = self.tok(ids) + self.pos(torch.arange(start, start + ids.size(1)))
        kept = []
        for n, blk in enumerate(self.blocks):
            x, kv = blk(x, None if past is None else past[n])
            kept.append(kv)
        return self.head(self.norm(x[:, -1])), kept


class Writer:
    def __init__(self, model, keep_state):
        self.model = model.eval()
        self.keep_state = keep_state

    @torch.inference_mode()
    def continue_story(self, prompt, new_tokens):
        ids, state = prompt, None
        for _ in range(new_tokens):
            feed = ids if state is None else ids[:, -1:]
            logits, kv = self.model(feed, state)
            state = kv if self.keep_state else None
            nxt = logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, nxt], dim=1)
        return ids[:, prompt.size(1) :]


def incoming(seed=0):
    g = torch.Generator().manual_seed(seed)
    while True:
        length = int(torch.randint(24, 48, (), generator=g))
        yield torch.randint(0, VOCAB, (2, length), generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    writer = Writer(LM(), keep_state=args.better)
    durations, produced = [], 0
    start = time.perf_counter()
    for prompt in incoming():
        t = time.perf_counter()
        out = writer.continue_story(prompt, 20)
        produced += out.numel()
        durations.append(time.perf_counter() - t)
        if time.perf_counter() - start > args.seconds:
            break
    print(f"{len(durations)} requests, {produced} tokens")
    if args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(f"{d:.6f}" for d in durations) + "\n")


if __name__ == "__main__":
    main()
