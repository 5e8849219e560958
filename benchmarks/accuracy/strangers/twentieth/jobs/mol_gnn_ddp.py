"""Property regression on molecule-like graphs with a message-passing network, data parallel (torchrun)."""

import argparse
import json
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Graph:
    __slots__ = ("atoms", "src", "dst", "dist", "y")

    def __init__(self, atoms, src, dst, dist_, y):
        self.atoms, self.src, self.dst, self.dist, self.y = atoms, src, dst, dist_, y


def make_graphs(n, seed):
    rng = np.random.default_rng(seed)
    graphs = []
    for size in np.clip(rng.lognormal(3.6, 0.85, n), 6, 400).astype(int):
        k = min(8, size - 1)
        dst = np.repeat(np.arange(size), k)
        src = (dst + np.tile(np.arange(1, k + 1), size)) % size
        d = rng.random(len(src), dtype=np.float32) * 4 + 1
        atoms = rng.integers(0, 10, size)
        y = np.float32((atoms == 3).mean() * 5 + rng.normal(0, 0.05))
        graphs.append(Graph(*map(torch.from_numpy, (atoms, src, dst, d)), float(y)))
    return graphs


def collate(graphs):
    sizes = torch.tensor([len(g.atoms) for g in graphs])
    offsets = torch.cumsum(sizes, 0) - sizes
    src = torch.cat([g.src + o for g, o in zip(graphs, offsets.tolist())])
    dst = torch.cat([g.dst + o for g, o in zip(graphs, offsets.tolist())])
    batch = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
    return (
        torch.cat([g.atoms for g in graphs]),
        src,
        dst,
        torch.cat([g.dist for g in graphs]),
        batch,
        sizes,
    ), torch.tensor([g.y for g in graphs])


class GlobalBatches:
    """All ranks draw the same global batch (same seed) and keep their part of it."""

    def __init__(self, graphs, global_batch, rank, world, strided=False, seed=0):
        self.graphs, self.global_batch = graphs, global_batch
        self.rank, self.world, self.strided = rank, world, strided
        self.rng = np.random.default_rng(seed)

    def part(self, members):
        # large graphs first, so that the allocator's peak comes early
        members = sorted(members, key=lambda i: -len(self.graphs[i].atoms))
        if self.strided:
            return members[self.rank :: self.world]
        share = len(members) // self.world
        return members[self.rank * share : (self.rank + 1) * share]

    def __iter__(self):
        while True:
            members = self.rng.choice(len(self.graphs), self.global_batch, replace=False)
            yield collate([self.graphs[i] for i in self.part(members)])


class MessagePassing(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim + 16, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.update = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, h, src, dst, edge):
        m = self.message(torch.cat([h[src], h[dst], edge], -1))
        agg = torch.zeros_like(h).index_add(0, dst, m)
        return h + self.update(torch.cat([h, agg], -1))


class PropertyNet(nn.Module):
    def __init__(self, dim=64, layers=3):
        super().__init__()
        self.embed = nn.Embedding(10, dim)
        self.register_buffer("centers", torch.linspace(0, 6, 16))
        self.layers = nn.ModuleList(MessagePassing(dim) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, atoms, src, dst, d, batch, sizes):
        edge = torch.exp(-4 * (d[:, None] - self.centers) ** 2)
        h = self.embed(atoms)
        for layer in self.layers:
            h = layer(h, src, dst, edge)
        pooled = torch.zeros(len(sizes), h.shape[1]).index_add(0, batch, h) / sizes[:, None]
        return self.readout(pooled)[:, 0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    batches = GlobalBatches(make_graphs(3000, 0), 16, rank, world, strided=args.better)
    model = DistributedDataParallel(PropertyNet())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    times = []
    start = last = time.perf_counter()
    for step, (inputs, y) in enumerate(batches):
        loss = F.mse_loss(model(*inputs), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} mse {loss.item():.4f}", flush=True)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if step % 10 == 9:
            stop = torch.tensor(now - start > args.seconds, dtype=torch.int32)
            dist.broadcast(stop, 0)
            if stop:
                break
    if rank == 0 and args.times:
        json.dump(times, open(args.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
