"""Aspect tagging of product reviews: every batch holds about the same number of words."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS_PER_BATCH, VOCAB, TAGS, WIDTH = 1536, 3000, 17, 144


class GatedConv(nn.Module):
    """Mixes each word with its neighbours, position-wise cost only."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(3 * width, 2 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        h = torch.cat([F.pad(h, (0, 0, 1, 0))[:, :-1], h, F.pad(h, (0, 0, 0, 1))[:, 1:]], -1)
        x = x + F.glu(self.mix(h), -1)
        return x + self.down(F.gelu(self.up(x)))


class Tagger(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, WIDTH)
        self.body = nn.Sequential(*[GatedConv(WIDTH) for _ in range(depth)])
        self.out = nn.Linear(WIDTH, TAGS)

    def forward(self, ids):
        return self.out(self.body(self.emb(ids)))


class Reviews:
    def __init__(self, rank, count=6000):
        rng = random.Random(50 + rank)
        lens = sorted(min(384, max(8, int(rng.lognormvariate(3.9, 0.8)))) for _ in range(count))
        self.plans, cur = [], []
        for n in reversed(lens):
            if cur and (len(cur) + 1) * max(cur[0], n) > WORDS_PER_BATCH:
                self.plans.append(cur)
                cur = []
            cur.append(n)
        self.rng, self.g = rng, torch.Generator().manual_seed(rank)

    def stream(self):
        while True:
            self.rng.shuffle(self.plans)
            for plan in self.plans:
                ids = torch.randint(1, VOCAB, (len(plan), plan[0]), generator=self.g)
                live = torch.arange(plan[0])[None] < torch.tensor(plan)[:, None]
                yield ids, ids % TAGS, live


@torch.no_grad()
def held_out_score(model, stream, rounds=2):
    tally = torch.zeros(2)
    for _ in range(rounds):
        ids, tags, live = next(stream)
        tally += torch.tensor([((model(ids).argmax(-1) == tags) & live).sum(), live.sum()], dtype=torch.float)
    dist.all_reduce(tally)
    return (tally[0] / tally[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Tagger(), gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    train, held = Reviews(rank).stream(), Reviews(rank + 100, 800).stream()
    secs = []
    for step in range(1, int(os.environ.get("STEPS", 120)) + 1):
        t0 = time.perf_counter()
        ids, tags, live = next(train)
        words = live.sum().float()
        dist.all_reduce(words)
        logits = model(ids)
        loss = F.cross_entropy(logits[live], tags[live], reduction="sum") * world / words
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 50 == 0:
            acc = held_out_score(model.module, held)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.3f} held-out {acc:.3f}", flush=True)
        secs.append(time.perf_counter() - t0)
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{s:.6f}\n" for s in secs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
