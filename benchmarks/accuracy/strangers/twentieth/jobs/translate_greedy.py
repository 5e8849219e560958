"""Translation service: encoder-decoder with cached self-attention, greedy decoding, small batches of requests."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, BOS, EOS, DIM, HEADS = 4000, 1, 2, 256, 8


def split(x):
    b, n, _ = x.shape
    return x.view(b, n, HEADS, -1).transpose(1, 2)


def merge(x):
    b, h, n, d = x.shape
    return x.transpose(1, 2).reshape(b, n, h * d)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out, self.feed = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
            Feed(),
        )

    def forward(self, x):
        q, k, v = map(split, self.qkv(self.norm(x)).chunk(3, -1))
        return self.feed(x + self.out(merge(F.scaled_dot_product_attention(q, k, v))))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out1 = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm2, self.query, self.out2 = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.key, self.value = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.feed = Feed()

    def project(self, memory):
        return split(self.key(memory)), split(self.value(memory))

    def forward(self, x, memory, state, position, projected=None):
        q, k, v = map(split, self.qkv(self.norm1(x)).chunk(3, -1))
        keys, values = state
        keys[:, :, position : position + 1] = k
        values[:, :, position : position + 1] = v
        seen = slice(0, position + 1)
        x = x + self.out1(merge(F.scaled_dot_product_attention(q, keys[:, :, seen], values[:, :, seen])))
        q = split(self.query(self.norm2(x)))
        k, v = projected if projected is not None else self.project(memory)
        x = x + self.out2(merge(F.scaled_dot_product_attention(q, k, v)))
        return self.feed(x)


class Translator(nn.Module):
    def __init__(self, encoder_layers=3, decoder_layers=3, max_length=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.position = nn.Parameter(torch.randn(max_length, DIM) * 0.02)
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(decoder_layers))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def encode(self, source):
        x = self.embed(source) + self.position[: source.shape[1]]
        for layer in self.encoder:
            x = layer(x)
        return x

    @torch.inference_mode()
    def greedy(self, source, steps, better=False):
        memory = self.encode(source)
        batch = source.shape[0]
        states = [memory.new_zeros(2, batch, HEADS, steps, DIM // HEADS).unbind(0) for _ in self.decoder]
        projected = [layer.project(memory) if better else None for layer in self.decoder]
        token = source.new_full((batch, 1), BOS)
        done = torch.zeros(batch, 1, dtype=torch.bool)
        output = []
        for position in range(steps):
            x = self.embed(token) + self.position[position]
            for layer, state, kv in zip(self.decoder, states, projected):
                x = layer(x, memory, state, position, kv)
            token = self.head(self.norm(x[:, -1])).argmax(-1, keepdim=True)
            done |= token == EOS
            output.append(token)
            if done.all():
                break
        return torch.cat(output, 1)


def requests(seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        length = int(torch.randint(105, 127, (1,), generator=g))
        yield torch.randint(3, VOCAB, (6, length), generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--steps", type=int, default=14)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    model = Translator().eval()
    times, tokens = [], 0
    begin = last = time.perf_counter()
    for source in requests(seed=31):
        result = model.greedy(source, args.steps, args.better)
        tokens += result.numel()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 20 == 0:
            print(f"{len(times)} requests, {tokens / (now - begin):.0f} tokens/s", flush=True)
        if last - begin >= args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
