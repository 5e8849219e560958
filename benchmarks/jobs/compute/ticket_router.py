"""Trains the model that routes support tickets to one of the twelve queues."""

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

WORDS = (
    "printer login password invoice refund broken slow cannot open update screen order late "
    "parcel account email error card charge cancel phone app crash help please thanks"
).split()
QUEUES = 12
MAX_LENGTH = 128


class Vocabulary:
    def __init__(self, words, buckets=5000):
        self.index = {w: i + 2 for i, w in enumerate(words)}
        self.buckets = buckets

    def encode(self, text):
        return [1] + [self.index.get(w) or 30 + sum(map(ord, w)) % self.buckets for w in text.split()]


def make_tickets(n=3000, seed=11):
    rnd = random.Random(seed)
    tickets = []
    for _ in range(n):
        queue = rnd.randrange(QUEUES)
        n_words = max(5, min(MAX_LENGTH - 1, int(rnd.lognormvariate(2.9, 0.35))))
        words = [rnd.choice(WORDS[queue : queue + 8] if rnd.random() < 0.4 else WORDS) for _ in range(n_words)]
        tickets.append((" ".join(words), queue))
    return tickets


class Collator:
    def __init__(self, max_length=None):
        self.max_length = max_length

    def __call__(self, rows):
        width = self.max_length or max(len(ids) for ids, _ in rows)
        ids = torch.tensor([r[:width] + [0] * (width - len(r)) for r, _ in rows])
        return ids, torch.tensor([q for _, q in rows])


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Router(nn.Module):
    def __init__(self, vocab=5100, dim=128, heads=4, depth=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(MAX_LENGTH, dim) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, QUEUES)

    def forward(self, ids):
        keep = ids != 0
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        mask = keep[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        w = keep.unsqueeze(-1).float()
        return self.head((x * w).sum(1) / w.sum(1))


def batches(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    ap.add_argument("--batch-size", type=int, default=16)
    args = ap.parse_args()
    torch.manual_seed(0)

    vocabulary = Vocabulary(WORDS)
    rows = [(vocabulary.encode(text), queue) for text, queue in make_tickets()]
    collate = Collator(None if args.better else MAX_LENGTH)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=args.batch_size, shuffle=True, drop_last=True, collate_fn=collate
    )
    model = Router().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)

    durations, total = [], torch.zeros(())
    start = last = time.perf_counter()
    for step, (ids, queue) in enumerate(batches(loader), 1):
        loss = F.cross_entropy(model(ids), queue)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 50 == 0:
            print(f"step {step}: loss {total.item() / 50:.3f}")
            total.zero_()
        now = time.perf_counter()
        durations.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(durations, fh)


if __name__ == "__main__":
    main()
