"""Sequence tagger on two gloo ranks, four micro-batches per update."""

import argparse
import contextlib
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, TAGS, ACCUM = 4000, 18, 4


class Tagger(nn.Module):
    """Window tagger: five neighbouring embeddings, then an MLP."""

    def __init__(self, dim=256, hidden=768):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mlp = nn.Sequential(nn.Linear(5 * dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.out = nn.Linear(hidden, TAGS)

    def forward(self, ids):
        e = F.pad(self.embed(ids), (0, 0, 2, 2))
        return self.out(self.mlp(e.unfold(1, 5, 1).flatten(2)))


def micro_batches(rank, size=3, length=24):
    g = torch.Generator().manual_seed(100 + rank)
    while True:
        ids = torch.randint(0, VOCAB, (size, length), generator=g)
        yield ids, (ids + ids.roll(1, 1)) % TAGS


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def worker(rank, world, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(Tagger(), gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = micro_batches(rank)
    times, stop = [], torch.zeros(1)
    begin = last = time.perf_counter()
    while True:
        total = 0.0
        for k in range(ACCUM):
            ids, tags = next(data)
            hold = args.better and k < ACCUM - 1
            with model.no_sync() if hold else contextlib.nullcontext():
                loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten()) / ACCUM
                loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if rank == 0 and len(times) % 20 == 0:
            print("update", len(times), "loss", round(total, 4))
        if len(times) % 5 == 0:
            stop.fill_(float(now - begin > args.seconds))
            dist.broadcast(stop, 0)
            if stop.item():
                break
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    del model, opt
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    mp.spawn(worker, args=(2, free_port(), args), nprocs=2)
