"""Character-level GPT with accumulated gradients."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, CONTEXT, WIDTH, HEADS, LAYERS = 96, 128, 128, 4, 3
MICRO, ACCUMULATE = 8, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class CharGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, targets):
        x = self.blocks(self.tok(ids) + self.pos)
        return F.cross_entropy(self.head(self.ln(x)).flatten(0, 1), targets.flatten())


def corpus(n=400_000):
    phrase = torch.randint(VOCAB, (997,))
    text = phrase.repeat(n // 997 + 1)[:n]
    noise = torch.rand(n) < 0.05
    return torch.where(noise, torch.randint(VOCAB, (n,)), text)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=20)
    args = ap.parse_args()
    torch.manual_seed(0)
    text = corpus()
    windows = text.unfold(0, CONTEXT + 1, 1)
    model = CharGPT()
    opt = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), fused=True)
    times, running = [], torch.zeros(())
    begin = last = time.perf_counter()
    for step in range(1, 241):
        for g in opt.param_groups:
            g["lr"] = 1e-3 * min(1.0, step / 20) * (0.55 + 0.45 * math.cos(math.pi * step / 241))
        for _ in range(ACCUMULATE):
            chunk = windows[torch.randint(len(windows), (MICRO,))]
            loss = model(chunk[:, :-1], chunk[:, 1:]) / ACCUMULATE
            loss.backward()
            running += loss.detach()
        opt.step()
        opt.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {running.item() / 20:.3f}")
            running.zero_()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
