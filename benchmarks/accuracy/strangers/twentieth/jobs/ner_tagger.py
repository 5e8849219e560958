"""Named-entity tagging: transformer encoder over word pieces, BIO tags, length-grouped batches."""

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB, TAGS, MAX_LENGTH, PAD = 6000, 17, 128, 0


class Sentences(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        lengths = (torch.randn(count, generator=g).mul(0.45).exp() * 30).long().clamp(6, MAX_LENGTH)
        self.tokens = [torch.randint(1, VOCAB, (n,), generator=g) for n in lengths.tolist()]
        self.tags = [t % TAGS for t in self.tokens]
        self.lengths = lengths.tolist()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i], self.tags[i]


class LengthGroupedBatches:
    """Shuffles, then sorts within pools of `pool` batches, so that a batch holds sentences of like length."""

    def __init__(self, lengths, batch_size, pool=50, seed=0):
        self.lengths, self.batch_size, self.pool = lengths, batch_size, pool
        self.rng = random.Random(seed)

    def __iter__(self):
        order = list(range(len(self.lengths)))
        self.rng.shuffle(order)
        span = self.batch_size * self.pool
        batches = []
        for start in range(0, len(order), span):
            pool = sorted(order[start : start + span], key=self.lengths.__getitem__)
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        self.rng.shuffle(batches)
        return iter(batches)

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)


class Collator:
    def __init__(self, padding="longest", max_length=MAX_LENGTH):
        self.padding, self.max_length = padding, max_length

    def __call__(self, items):
        if self.padding == "max_length":
            width = self.max_length
        else:
            width = max(len(t) for t, _ in items)
        tokens = torch.full((len(items), width), PAD)
        tags = torch.full((len(items), width), -100)
        for row, (t, y) in enumerate(items):
            tokens[row, : len(t)] = t
            tags[row, : len(y)] = y
        return tokens, tags


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.norm2(x))


class Tagger(nn.Module):
    def __init__(self, dim=128, heads=4, layers=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.position = nn.Embedding(MAX_LENGTH, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, TAGS)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        mask = (tokens != PAD)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    data = Sentences(8000, seed=3)
    collate = Collator(padding="longest" if args.better else "max_length")
    loader = DataLoader(data, batch_sampler=LengthGroupedBatches(data.lengths, 16), collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    times, step = [], 0
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for tokens, tags in loader:
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
