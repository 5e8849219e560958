"""Jet tagging on two ranks. torchrun --nproc-per-node 2 dist_events.py"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARTICLES, FEATURES = 64, 32


class EventStore:
    def __init__(self, events=6000, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.p4 = torch.randn(events, PARTICLES, FEATURES, generator=g)
        self.label = torch.randint(0, 2, (events,), generator=g)
        self.g = g

    def shards(self, size, world):
        rows = torch.randint(0, len(self.label), (size * world,), generator=self.g)
        return [{"p4": self.p4[r], "label": self.label[r].tolist()} for r in rows.split(size)]


class RootFeed:
    """Rank 0 draws the global batch and hands every rank its part."""

    def __init__(self, size):
        self.size = size
        self.store = EventStore() if dist.get_rank() == 0 else None

    def next(self):
        parts = self.store.shards(self.size, dist.get_world_size()) if self.store else None
        mine = [None]
        dist.scatter_object_list(mine, parts, src=0)
        return mine[0]["p4"], torch.tensor(mine[0]["label"])


class LocalFeed(RootFeed):
    def __init__(self, size):
        self.size = size
        self.store = EventStore()

    def next(self):
        world, rank = dist.get_world_size(), dist.get_rank()
        rows = torch.randint(0, len(self.store.label), (self.size * world,), generator=self.store.g)
        rows = rows.split(self.size)[rank]
        return self.store.p4[rows], self.store.label[rows]


class DeepSet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.rho = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, p4):
        return self.rho(self.phi(p4).sum(1) / PARTICLES)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    feed = (LocalFeed if a.better else RootFeed)(256)
    net = DistributedDataParallel(DeepSet())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    master = dist.get_rank() == 0
    times, t_stop, alive = [], time.perf_counter() + a.seconds, torch.ones(1)
    while True:
        alive.fill_(float(time.perf_counter() < t_stop))
        dist.broadcast(alive, 0)
        if not alive.item():
            break
        t0 = time.perf_counter()
        p4, label = feed.next()
        loss = nn.functional.cross_entropy(net(p4), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
        if master and len(times) % 50 == 0:
            print(f"{len(times)} {loss.item():.4f}", flush=True)
    if master and a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
