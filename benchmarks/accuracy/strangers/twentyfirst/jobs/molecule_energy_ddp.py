"""Message-passing network for molecular energies, data parallel over two ranks."""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ELEMENTS = 10


def make_molecules(count, seed=0):
    """Atom numbers, positions and energies; sizes from fragments to small peptides."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        n = int(8 + 82 * torch.rand((), generator=g).pow(2))
        kind = torch.randint(0, ELEMENTS, (n,), generator=g)
        pos = torch.randn(n, 3, generator=g) * n ** (1 / 3)
        near = torch.cdist(pos, pos) + 1e3 * torch.eye(n)
        k = min(10, n - 1)
        source = near.topk(k, largest=False).indices.flatten()
        dest = torch.arange(n).repeat_interleave(k)
        energy = (kind.float().mean() - 4.5) + 1 / near.clamp(min=0.5)[near < 3].sum().clamp(min=1)
        out.append({"kind": kind, "pos": pos, "edges": torch.stack([source, dest]), "energy": energy})
    return out


def collate(molecules):
    kinds, positions, edges, owner, shift = [], [], [], [], 0
    for i, m in enumerate(molecules):
        kinds.append(m["kind"])
        positions.append(m["pos"])
        edges.append(m["edges"] + shift)
        owner.append(torch.full((len(m["kind"]),), i))
        shift += len(m["kind"])
    energy = torch.stack([m["energy"] for m in molecules])
    return torch.cat(kinds), torch.cat(positions), torch.cat(edges, 1), torch.cat(owner), energy


class Interaction(nn.Module):
    def __init__(self, dim, radial):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(radial, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.update = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, h, source, dest, basis):
        message = h[source] * self.filter(basis)
        total = torch.zeros_like(h).index_add_(0, dest, message)
        return h + self.update(total)


class EnergyModel(nn.Module):
    def __init__(self, dim=96, depth=3, radial=24):
        super().__init__()
        self.embed = nn.Embedding(ELEMENTS, dim)
        self.blocks = nn.ModuleList(Interaction(dim, radial) for _ in range(depth))
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))
        self.register_buffer("centres", torch.linspace(0, 8, radial))

    def forward(self, kind, pos, edges, owner, count):
        source, dest = edges
        distance = (pos[source] - pos[dest]).norm(dim=1, keepdim=True)
        basis = torch.exp(-2 * (distance - self.centres).square())
        h = self.embed(kind)
        for block in self.blocks:
            h = block(h, source, dest, basis)
        atoms = torch.zeros(count).index_add_(0, owner, torch.ones(len(owner)))
        return torch.zeros(count).index_add_(0, owner, self.readout(h).squeeze(1)) / atoms


def global_batches(molecules, size, seed):
    """Every rank draws the same batches; inside a batch the molecules are ordered by size."""
    g = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(molecules), generator=g)[:size].tolist()
        yield sorted((molecules[i] for i in order), key=lambda m: len(m["kind"]))


def my_share(batch, rank, world, better):
    if better:
        return batch[rank::world]
    part = len(batch) // world
    return batch[rank * part : (rank + 1) * part]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(EnergyModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = global_batches(make_molecules(1500), 64, seed=5)

    times, stop = [], torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    while not stop.item():
        began = time.perf_counter()
        kind, pos, edges, owner, energy = collate(my_share(next(batches), rank, world, args.better))
        predicted = model(kind, pos, edges, owner, len(energy))
        loss = F.huber_loss(predicted, energy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stop.fill_(float(time.perf_counter() - start > args.seconds))
        dist.broadcast(stop, 0)
        times.append(time.perf_counter() - began)
        if rank == 0 and len(times) % 20 == 0:
            print(f"step {len(times)}: loss {loss.item():.4f}", flush=True)

    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
