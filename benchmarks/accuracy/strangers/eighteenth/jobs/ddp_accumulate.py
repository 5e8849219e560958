"""DDP pretraining of a text encoder with gradient accumulation (2 ranks, gloo)."""

import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class TagModel(nn.Module):
    def __init__(self, vocab=6000, dim=160, tags=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(
            nn.Linear(dim, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, dim)
        )
        self.out = nn.Linear(dim, tags)

    def forward(self, ids):
        h = self.embed(ids)
        return self.out(h + self.mix(h))


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    return ap.parse_args()


def keep_going(deadline):
    flag = torch.tensor([time.perf_counter() < deadline], dtype=torch.int32)
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(TagModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    generator = torch.Generator().manual_seed(100 + rank)
    accumulation = 4

    times = []
    last = time.perf_counter()
    deadline = last + args.seconds
    while keep_going(deadline):
        optimizer.zero_grad()
        for micro in range(accumulation):
            ids = torch.randint(0, 6000, (4, 24), generator=generator)
            tags = ids % 32
            final = micro == accumulation - 1
            sync = contextlib.nullcontext() if final or not args.better else model.no_sync()
            with sync:
                loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten()) / accumulation
                loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now

    if rank == 0:
        print(f"{len(times)} steps, loss {loss.item() * accumulation:.3f}")
        if args.times:
            with open(args.times, "w") as f:
                json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
