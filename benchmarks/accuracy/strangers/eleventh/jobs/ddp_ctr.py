"""Click-through-rate model (DeepFM flavour), two data-parallel workers, accumulated batches.

torchrun --nproc-per-node 2 ddp_ctr.py
"""

import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

FIELDS, BUCKETS, DIM = 16, 500, 16


class DeepFM(nn.Module):
    def __init__(self, hidden=1536):
        super().__init__()
        self.embed = nn.Embedding(FIELDS * BUCKETS, DIM)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.wide = nn.Embedding(FIELDS * BUCKETS, 1)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * DIM, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.register_buffer("offset", torch.arange(FIELDS) * BUCKETS)

    def forward(self, ids):
        ids = ids + self.offset
        e = self.embed(ids)
        pair = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        return self.wide(ids).sum((1, 2)) + pair + self.deep(e.flatten(1)).squeeze(1)


class ClickLog:
    """Endless log reader: every rank sees its own shard."""

    def __init__(self, rank, batch):
        self.g = torch.Generator().manual_seed(100 + rank)
        self.batch = batch
        self.taste = torch.randn(FIELDS, generator=torch.Generator().manual_seed(9))

    def __next__(self):
        u = torch.rand(self.batch, FIELDS, generator=self.g)
        ids = (u.square() * BUCKETS).long()
        p = torch.sigmoid((u - 0.33) @ self.taste - 1.0)
        return ids, torch.bernoulli(p, generator=self.g)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--micro-batch", type=int, default=32)
    ap.add_argument("--accumulate", type=int, default=4)
    return ap.parse_args()


def main():
    args = parse()
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29617")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(DeepFM())
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01, fused=True)
    log = ClickLog(rank, args.micro_batch)
    stop = torch.zeros(1)
    times, step, begin = [], 0, time.perf_counter()
    while True:
        t0 = time.perf_counter()
        opt.zero_grad()
        total = 0.0
        for k in range(args.accumulate):
            ids, clicks = next(log)
            last = k == args.accumulate - 1
            guard = model.no_sync() if args.better and not last else contextlib.nullcontext()
            with guard:
                loss = F.binary_cross_entropy_with_logits(model(ids), clicks) / args.accumulate
                loss.backward()
            total += loss.item()
        opt.step()
        stop[0] = float(time.perf_counter() - begin > args.seconds)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        times.append(time.perf_counter() - t0)
        if rank == 0 and step % 50 == 0:
            print(f"step {step} logloss {total:.4f}", flush=True)
        step += 1
        if stop.item() > 0:
            break
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
