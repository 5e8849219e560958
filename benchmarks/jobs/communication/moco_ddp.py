"""Momentum contrast on small images, data parallel over gloo.

torchrun --nproc-per-node 2 moco_ddp.py
"""

import argparse
import copy
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def conv(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.GroupNorm(8, o), nn.ReLU())


def encoder(dim):
    return nn.Sequential(
        conv(3, 32, 2),
        conv(32, 64, 2),
        conv(64, 96, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 128),
        nn.ReLU(),
        nn.Linear(128, dim),
    )


class MoCo(nn.Module):
    def __init__(self, dim=128, queue=65536, momentum=0.99, temperature=0.2):
        super().__init__()
        self.q = encoder(dim)
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.m, self.t = momentum, temperature
        self.register_buffer("queue", F.normalize(torch.randn(dim, queue), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, x1, x2):
        with torch.no_grad():
            for pq, pk in zip(self.q.parameters(), self.k.parameters()):
                pk.lerp_(pq, 1 - self.m)
            key = F.normalize(self.k(x2), dim=1)
        query = F.normalize(self.q(x1), dim=1)
        pos = (query * key).sum(1, keepdim=True)
        neg = query @ self.queue
        logits = torch.cat([pos, neg], dim=1) / self.t
        return F.cross_entropy(logits, torch.zeros(len(x1), dtype=torch.long)), key

    @torch.no_grad()
    def enqueue(self, key):
        """Gather the keys of all ranks so that every replica keeps the same queue."""
        parts = [torch.empty_like(key) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, key.contiguous())
        keys = torch.cat(parts)
        p = int(self.ptr)
        self.queue[:, p : p + len(keys)] = keys.T
        self.ptr[0] = (p + len(keys)) % self.queue.size(1)


def augment(x):
    x = x + 0.1 * torch.randn_like(x)
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    return x.contiguous(memory_format=torch.channels_last)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=12)
    args = ap.parse_args()
    for key, value in dict(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29531").items():
        os.environ.setdefault(key, value)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = MoCo().to(memory_format=torch.channels_last)
    ddp = DDP(model, forward_sync_buffers=not args.better)
    opt = torch.optim.SGD(model.q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)

    torch.manual_seed(100 + rank)
    images = torch.rand(2048 // world, 3, 32, 32)
    times, begin = [], time.perf_counter()
    while True:
        t0 = time.perf_counter()
        x = images[torch.randint(0, len(images), (args.batch,))]
        loss, key = ddp(augment(x), augment(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.enqueue(key)
        more = torch.tensor([float(time.perf_counter() - begin < args.seconds)])
        dist.broadcast(more, src=0)
        times.append(time.perf_counter() - t0)
        if rank == 0 and len(times) % 50 == 0:
            print(f"step {len(times)} contrastive loss {loss.item():.3f}", flush=True)
        if more.item() == 0:
            break
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
