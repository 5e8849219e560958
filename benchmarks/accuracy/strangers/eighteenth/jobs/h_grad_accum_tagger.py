"""Window-based sequence tagger trained with gradient accumulation over four micro-batches."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tagger(nn.Module):
    def __init__(self, vocab=5000, dim=64, hidden=256, tags=17):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.inp = nn.Linear(3 * dim, hidden)
        self.mid = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, tags)

    def forward(self, ids):
        e = self.embed(F.pad(ids, (1, 1)))
        window = torch.cat([e[:, :-2], e[:, 1:-1], e[:, 2:]], dim=2)
        return self.out(self.mid(F.relu(self.inp(window))))


class Corpus:
    def __init__(self, n=8000, length=32, vocab=5000, tags=17):
        self.ids = torch.randint(0, vocab, (n, length))
        self.tags = (self.ids + self.ids.roll(1, dims=1)) % tags

    def epoch(self, size):
        order = torch.randperm(len(self.ids))
        for part in order.split(size):
            if len(part) == size:
                yield self.ids[part], self.tags[part]


def forever(corpus, size):
    while True:
        yield from corpus.epoch(size)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    micro, accumulation = 32, 4
    stream = forever(Corpus(), micro)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=100)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(accumulation):
            ids, tags = next(stream)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tags.flatten()) / accumulation
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if len(times) % 25 == 0:
            print(f"step {len(times)} loss {total.item():.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
