"""Reads receipt lines: a small conv encoder over the line image, a transformer
decoder that writes the characters. Batch job over the scans of the night."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

CHARS = 160
BOS, EOS = 1, 2
DIM, HEADS, LAYERS = 256, 4, 4


class LineEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(64, DIM, (8, 1)),
            nn.GELU(),
        )

    def forward(self, img):  # (b, 1, 32, w)
        return self.conv(img).squeeze(2).transpose(1, 2)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def heads(self, x):
        return x.unflatten(2, (HEADS, -1)).transpose(1, 2)

    def keys_values(self, x):
        return self.heads(self.k(x)), self.heads(self.v(x))

    def forward(self, x, k, v):
        y = F.scaled_dot_product_attention(self.heads(self.q(x)), k, v)
        return self.o(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.cross_attn = Attend(), Attend()
        self.n1, self.n2, self.n3 = (nn.LayerNorm(DIM) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def step(self, x, memory, cache, reuse):
        k, v = self.self_attn.keys_values(self.n1(x))
        if "k" in cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        cache["k"], cache["v"] = k, v
        x = x + self.self_attn(self.n1(x), k, v)

        if reuse:
            if "memory" not in cache:
                cache["memory"] = self.cross_attn.keys_values(memory)
            mk, mv = cache["memory"]
        else:
            mk, mv = self.cross_attn.keys_values(memory)
        x = x + self.cross_attn(self.n2(x), mk, mv)
        return x + self.mlp(self.n3(x))


class Reader(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.reuse = args.better
        self.encoder = LineEncoder()
        self.embed = nn.Embedding(CHARS, DIM)
        self.pos = nn.Embedding(128, DIM)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, CHARS)

    @torch.inference_mode()
    def read(self, img, max_chars=24):
        memory = self.encoder(img)
        token = torch.full((img.shape[0], 1), BOS)
        done = torch.zeros(img.shape[0], dtype=torch.bool)
        caches = [{} for _ in self.layers]
        text = []
        for i in range(max_chars):
            x = self.embed(token) + self.pos.weight[i]
            for layer, cache in zip(self.layers, caches):
                x = layer.step(x, memory, cache, self.reuse)
            token = self.head(x).argmax(-1)
            done |= token[:, 0] == EOS
            text.append(token)
            if done.all():
                break
        return torch.cat(text, 1)


def scans(n=12, batch=4):
    g = torch.Generator().manual_seed(1)
    return [torch.rand(batch, 1, 32, 240, generator=g) for _ in range(n)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    reader = Reader(args).eval()
    batches = scans()
    times, i, chars = [], 0, 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        text = reader.read(batches[i % len(batches)])
        chars += int((text > EOS).sum())
        times.append(time.perf_counter() - t0)
        i += 1
        if i % 20 == 0:
            print(f"batch {i}: {chars} characters")

    print(f"{i} batches, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
