"""Two-rank DDP acoustic model on utterances of varying length, batches made from a sorted list."""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD = 2


class Acoustic(nn.Module):
    def __init__(self, feats=40, ch=160, phones=42):
        super().__init__()
        self.front = nn.Conv1d(feats, ch, 5, padding=2)
        self.mid = nn.ModuleList(nn.Conv1d(ch, ch, 5, padding=2) for _ in range(3))
        self.out = nn.Conv1d(ch, phones, 1)

    def forward(self, x):
        x = self.front(x).relu()
        for m in self.mid:
            x = x + m(x).relu()
        return self.out(x)


def corpus(n=1600):
    g = torch.Generator().manual_seed(4)
    lengths = (30 + 270 * torch.rand(n, generator=g) ** 3).long().sort(descending=True).values
    return lengths.tolist()


def batches_for(rank, lengths, bs, spread):
    """Sorted by length so that a batch needs little padding; each rank gets its share."""
    groups = [lengths[i : i + bs] for i in range(0, len(lengths), bs)]
    if spread:
        mine = groups[rank::WORLD]
    else:
        share = len(groups) // WORLD
        mine = groups[rank * share : (rank + 1) * share]
    order = torch.randperm(len(mine), generator=torch.Generator().manual_seed(0)).tolist()
    return [mine[i] for i in order]


def load(group, gen):
    width = max(group)
    x = torch.zeros(len(group), 40, width)
    y = torch.full((len(group), width), -100)
    for i, n in enumerate(group):
        x[i, :, :n] = torch.randn(40, n, generator=gen)
        y[i, :n] = x[i, :, :n].argmax(0)
    return x, y


def run(rank, port, args):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = DDP(Acoustic())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    ce = nn.CrossEntropyLoss()
    mine = batches_for(rank, corpus(), 12, args.better)
    gen = torch.Generator().manual_seed(50 + rank)
    alive = torch.ones(1)
    times, k = [], 0
    t_begin = time.perf_counter()
    while alive.item():
        t0 = time.perf_counter()
        x, y = load(mine[k % len(mine)], gen)
        loss = ce(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        k += 1
        alive.fill_(float(time.perf_counter() - t_begin < args.seconds))
        dist.broadcast(alive, 0)
        times.append(time.perf_counter() - t0)
    if rank == 0:
        print(k, "steps; loss", round(loss.item(), 3))
        if args.times:
            json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.spawn(run, args=(port, args), nprocs=WORLD)
