"""Causal language-model pre-training with DDP (gloo) and gradient accumulation.
torchrun --nproc-per-node 2 ddp_lm_accum.py"""

import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCAB, CONTEXT, ACCUMULATE = 8192, 32, 4


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, dim=192, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Parameter(torch.zeros(CONTEXT, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TokenStream:
    def __init__(self, rank, world, seed, length=400_000):
        g = torch.Generator().manual_seed(seed)
        corpus = (torch.rand(length, generator=g).pow(2) * VOCAB).long()
        self.shard = corpus.chunk(world)[rank]
        self.generator = torch.Generator().manual_seed(seed + rank)

    def batch(self, size):
        starts = torch.randint(0, len(self.shard) - CONTEXT - 1, (size, 1), generator=self.generator)
        window = self.shard[starts + torch.arange(CONTEXT + 1)]
        return window[:, :-1], window[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--micro-batch", type=int, default=2)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    stream = TokenStream(rank, world, seed=17)
    model = DistributedDataParallel(LanguageModel(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    def keep_local(micro):
        return model.no_sync() if args.better and micro < ACCUMULATE - 1 else contextlib.nullcontext()

    times, step = [], 0
    stop = torch.zeros(1)
    begin = last = time.perf_counter()
    while not stop.item():
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in range(ACCUMULATE):
            tokens, targets = stream.batch(args.micro_batch)
            with keep_local(micro):
                logits = model(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / ACCUMULATE
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 10 == 0:
            if rank == 0:
                print(f"step {step} loss {total:.3f}", flush=True)
            stop.fill_(float(time.perf_counter() - begin >= args.seconds))
            dist.broadcast(stop, 0)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if rank == 0 and args.times:
        json.dump(times, open(args.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
