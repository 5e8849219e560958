"""LoRA fine-tuning of a frozen encoder for intent classification; adapters on q, v and the feed-forward."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, INTENTS, LENGTH, RANK = 5000, 64, 32, 8


class LoRALinear(nn.Module):
    def __init__(self, base, rank=RANK, alpha=16):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.up(self.down(x) * self.scale)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, mask):
        b, n, d = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, n, self.heads, -1).transpose(1, 2) for p in (self.query, self.key, self.value))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, dim=256, heads=4, layers=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, INTENTS)

    def forward(self, tokens):
        real = tokens != 0
        x = self.embed(tokens)
        mask = real[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        pooled = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return self.head(pooled)


def add_adapters(model):
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("query", "value", "up"):
            setattr(layer, name, LoRALinear(getattr(layer, name)))
    model.head.requires_grad_(True)
    return model


class Utterances:
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.intent = torch.randint(0, INTENTS, (count,), generator=g)
        self.tokens = torch.randint(1, VOCAB, (count, LENGTH), generator=g)
        self.tokens[:, 0] = self.intent + 1
        self.lengths = torch.randint(LENGTH - 6, LENGTH + 1, (count,), generator=g)
        self.tokens[torch.arange(LENGTH) >= self.lengths[:, None]] = 0
        self.generator = g

    def batch(self, size):
        rows = torch.randint(0, len(self.intent), (size,), generator=self.generator)
        width = int(self.lengths[rows].max())
        return self.tokens[rows, :width], self.intent[rows]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true", help="no difference here")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    data = Utterances(6000, seed=81)
    model = add_adapters(Encoder())
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, weight_decay=0.0, fused=True)
    accuracy = 0.0

    with tempfile.TemporaryDirectory() as folder:
        times, step = [], 0
        begin = last = time.perf_counter()
        while last - begin < args.seconds:
            tokens, intent = data.batch(24)
            logits = model(tokens)
            loss = F.cross_entropy(logits, intent)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(trained.values(), 1.0)
            optimizer.step()
            accuracy = 0.95 * accuracy + 0.05 * (logits.argmax(1) == intent).float().mean().item()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.3f} acc {accuracy:.3f}", flush=True)
            if step % 40 == 0:
                torch.save({n: p.detach() for n, p in trained.items()}, Path(folder) / "adapter.pt")
            now = time.perf_counter()
            times.append(now - last)
            last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
