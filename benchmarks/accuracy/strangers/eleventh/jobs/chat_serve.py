"""Tiny chat backend: answers batches of prompts with nucleus sampling from a decoder model."""

import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 32000
    dim: int = 256
    heads: int = 8
    layers: int = 3
    max_len: int = 64
    lanes: int = 6


@dataclass
class Sampling:
    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 0.92
    new_tokens: int = 4


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.n1, self.n2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.qkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.o = nn.Linear(c.dim, c.dim, bias=False)
        self.up = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.down = nn.Linear(3 * c.dim, c.dim, bias=False)

    def forward(self, x, cache, pos):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        cache[0][:, :, pos : pos + t], cache[1][:, :, pos : pos + t] = k, v
        k, v = cache[0][:, :, : pos + t], cache[1][:, :, : pos + t]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.silu(self.up(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.emb = nn.Embedding(c.vocab, c.dim)
        self.pos = nn.Embedding(c.max_len, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim)
        shape = (c.lanes, c.heads, c.max_len, c.dim // c.heads)
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(c.layers)]

    def forward(self, ids, pos):
        x = self.emb(ids) + self.pos.weight[pos : pos + ids.shape[1]]
        for layer, cache in zip(self.layers, self.caches):
            x = layer(x, cache, pos)
        return F.linear(self.norm(x[:, -1]), self.emb.weight)


def pick(logits, s, better):
    logits = logits / s.temperature
    if better:
        top, order = logits.topk(s.top_k, dim=-1)
    else:
        top, order = torch.sort(logits, dim=-1, descending=True)
        top, order = top[:, : s.top_k], order[:, : s.top_k]
    probs = top.softmax(-1)
    outside = probs.cumsum(-1) - probs > s.top_p
    probs = probs.masked_fill(outside, 0.0)
    return order.gather(1, torch.multinomial(probs, 1))


@torch.inference_mode()
def answer(model, prompt, sampling, better):
    ids, pos, out = prompt, 0, []
    for _ in range(sampling.new_tokens):
        logits = model(ids, pos)
        pos += ids.shape[1]
        ids = pick(logits, sampling, better)
        out.append(ids)
    return torch.cat(out, dim=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    args = ap.parse_args()
    torch.manual_seed(0)
    config, sampling = Config(), Sampling()
    model = Decoder(config).eval()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        prompt = torch.randint(0, config.vocab, (config.lanes, 20))
        t0 = time.perf_counter()
        reply = answer(model, prompt, sampling, args.better)
        times.append(time.perf_counter() - t0)
        if len(times) % 100 == 0:
            print(f"{len(times)} batches served, last reply {reply[0].tolist()}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
