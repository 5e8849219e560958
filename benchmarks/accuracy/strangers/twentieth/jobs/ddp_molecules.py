"""Molecular property regression: message passing on packed graphs, DDP (gloo).
torchrun --nproc-per-node 2 ddp_molecules.py"""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ELEMENTS, RBF, NEIGHBOURS = 12, 16, 10


def make_molecules(count, seed):
    g = torch.Generator().manual_seed(seed)
    sizes = (torch.randn(count, generator=g).mul(0.8).exp() * 22).long().clamp(5, 140).tolist()
    molecules = []
    for n in sizes:
        pos = torch.rand(n, 3, generator=g) * n ** (1 / 3) * 1.6
        distance, near = torch.cdist(pos, pos).topk(min(NEIGHBOURS, n - 1) + 1, largest=False)
        source = near[:, 1:].flatten()
        target = torch.arange(n).repeat_interleave(near.shape[1] - 1)
        kinds = torch.randint(0, ELEMENTS, (n,), generator=g)
        molecules.append((kinds, source, target, distance[:, 1:].flatten(), kinds.float().mean() - 5.5))
    return molecules


class GlobalBatches:
    """Each global batch is ordered by molecule size before it is dealt out, so that a rank packs graphs of like size."""

    def __init__(self, sizes, batch_size, rank, world, better, seed=0):
        self.sizes, self.batch_size, self.rank, self.world = sizes, batch_size, rank, world
        self.better = better
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        order = torch.randperm(len(self.sizes), generator=self.generator)
        share = self.batch_size // self.world
        for rows in order.split(self.batch_size):
            if len(rows) < self.batch_size:
                return
            rows = rows[self.sizes[rows].argsort()]
            if self.better:
                yield rows.view(-1, self.world)[:, self.rank].tolist()
            else:
                yield rows[self.rank * share : (self.rank + 1) * share].tolist()


def pack(molecules):
    kinds, sources, targets, distances, owners, labels = [], [], [], [], [], []
    offset = 0
    for i, (k, s, t, d, y) in enumerate(molecules):
        kinds.append(k)
        sources.append(s + offset)
        targets.append(t + offset)
        distances.append(d)
        labels.append(y)
        owners.append(torch.full((len(k),), i))
        offset += len(k)
    return tuple(map(torch.cat, (kinds, sources, targets, distances, owners))), torch.stack(labels)


class Interaction(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(RBF, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.inward = nn.Linear(dim, dim, bias=False)
        self.update = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, h, source, target, rbf):
        message = self.inward(h).index_select(0, source) * self.filter(rbf)
        return h + self.update(torch.zeros_like(h).index_add(0, target, message))


class PropertyNet(nn.Module):
    def __init__(self, dim=96, layers=3):
        super().__init__()
        self.embed = nn.Embedding(ELEMENTS, dim)
        self.layers = nn.ModuleList(Interaction(dim) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1))
        self.register_buffer("centres", torch.linspace(0, 6, RBF))

    def forward(self, kinds, source, target, distance, owner, count):
        rbf = torch.exp(-2 * (distance[:, None] - self.centres) ** 2)
        h = self.embed(kinds)
        for layer in self.layers:
            h = layer(h, source, target, rbf)
        atom = self.readout(h).squeeze(1)
        total = atom.new_zeros(count).index_add(0, owner, atom)
        return total / torch.bincount(owner, minlength=count)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    molecules = make_molecules(3000, seed=23)
    sizes = torch.tensor([len(m[0]) for m in molecules])
    batches = GlobalBatches(sizes, args.batch_size, rank, world, args.better)
    model = DistributedDataParallel(PropertyNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    times, step = [], 0
    stop = torch.zeros(1)
    begin = last = time.perf_counter()
    while not stop.item():
        for rows in batches:
            inputs, label = pack([molecules[r] for r in rows])
            loss = F.smooth_l1_loss(model(*inputs, len(rows)), label)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                if rank == 0:
                    print(f"step {step} loss {loss.item():.4f}", flush=True)
                stop.fill_(float(time.perf_counter() - begin >= args.seconds))
                dist.broadcast(stop, 0)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if stop.item():
                break
    if rank == 0 and args.times:
        json.dump(times, open(args.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
