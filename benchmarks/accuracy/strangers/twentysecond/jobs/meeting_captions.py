"""Caption server: log-mel chunks of a meeting in, greedy token ids out."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, BOS = 1200, 1


class Encoder(nn.Module):
    def __init__(self, dim, layers=2, mels=40):
        super().__init__()
        self.c1 = nn.Conv1d(mels, dim, 3, padding=1)
        self.c2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True, norm_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, mel):
        x = F.gelu(self.c2(F.gelu(self.c1(mel))))
        return self.body(x.transpose(1, 2))


def split_heads(x, heads):
    b, t, d = x.shape
    return x.view(b, t, heads, d // heads).transpose(1, 2)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, state, pos):
        q, k, v = (split_heads(p, self.heads) for p in self.qkv(x).chunk(3, -1))
        state["k"][:, :, pos : pos + 1] = k
        state["v"][:, :, pos : pos + 1] = v
        a = F.scaled_dot_product_attention(q, state["k"][:, :, : pos + 1], state["v"][:, :, : pos + 1])
        return self.out(a.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def project(self, memory):
        return [split_heads(p, self.heads).contiguous() for p in self.kv(memory).chunk(2, -1)]

    def forward(self, x, memory, state):
        k, v = state["mem"] if "mem" in state else self.project(memory)
        a = F.scaled_dot_product_attention(split_heads(self.q(x), self.heads), k, v)
        return self.out(a.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attn = SelfAttention(dim, heads)
        self.cross = CrossAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, memory, state, pos):
        x = x + self.self_attn(self.n1(x), state, pos)
        x = x + self.cross(self.n2(x), memory, state)
        return x + self.mlp(self.n3(x))


class Captioner(nn.Module):
    def __init__(self, opt, dim=192, heads=4, layers=3, max_len=32):
        super().__init__()
        self.opt, self.heads, self.max_len, self.dim = opt, heads, max_len, dim
        self.encoder = Encoder(dim)
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.1)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def new_state(self, layer, memory):
        shape = (memory.shape[0], self.heads, self.max_len, self.dim // self.heads)
        state = {"k": memory.new_empty(shape), "v": memory.new_empty(shape)}
        if self.opt.better:
            state["mem"] = layer.cross.project(memory)
        return state

    @torch.inference_mode()
    def caption(self, mel, steps):
        memory = self.encoder(mel)
        states = [self.new_state(layer, memory) for layer in self.layers]
        token = torch.full((mel.shape[0], 1), BOS)
        out = []
        for pos in range(steps):
            x = self.tok(token) + self.pos[pos]
            for layer, state in zip(self.layers, states):
                x = layer(x, memory, state, pos)
            token = F.linear(self.norm(x), self.tok.weight).argmax(-1)
            out.append(token)
        return torch.cat(out, 1)


def chunk_stream(batch, frames, seed=5):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((64, 40, frames), dtype=np.float32)
    while True:
        pick = rng.integers(0, 64, batch)
        yield torch.from_numpy(base[pick])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=3)
    opt = ap.parse_args()
    torch.manual_seed(3)
    model = Captioner(opt).eval()

    times, checksum = [], 0
    begin = time.perf_counter()
    for mel in chunk_stream(opt.batch, 320):
        t = time.perf_counter()
        ids = model.caption(mel, steps=20)
        checksum = (checksum * 31 + int(ids.sum())) % 1_000_003
        done = time.perf_counter()
        times.append(done - t)
        if len(times) == 10:
            print(f"first ten requests: checksum {checksum}")
        if done - begin > opt.seconds:
            break
    times_sorted = sorted(times)
    print(f"{len(times)} requests, p50 {times_sorted[len(times) // 2] * 1e3:.1f} ms")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
