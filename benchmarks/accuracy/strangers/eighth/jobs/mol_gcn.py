"""Message passing net for HOMO-LUMO gap regression on batches of small molecules.

Molecules in a batch are merged to one disconnected graph.
"""

import argparse
import json
import time
from collections import namedtuple

import torch
from torch import nn

Mol = namedtuple("Mol", "z pairs gap")
ELEMENTS = 10


def random_molecule(g):
    n = int(torch.randint(9, 24, (1,), generator=g))
    z = torch.randint(0, ELEMENTS, (n,), generator=g)
    parent = torch.tensor([int(torch.randint(max(0, i - 3), i, (1,), generator=g)) for i in range(1, n)])
    child = torch.arange(1, n)
    pairs = torch.stack([torch.cat([parent, child]), torch.cat([child, parent])])
    gap = (z.float().mean() - 4.5) * 0.3 + 0.02 * n
    return Mol(z, pairs, gap)


class Batch:
    def __init__(self, mols, dense):
        sizes = torch.tensor([len(m.z) for m in mols])
        offs = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)[:-1]])
        self.z = torch.cat([m.z for m in mols])
        self.edge = torch.cat([m.pairs + o for m, o in zip(mols, offs.tolist())], 1)
        self.owner = torch.repeat_interleave(torch.arange(len(mols)), sizes)
        self.count = sizes
        self.gap = torch.stack([m.gap for m in mols])
        self.adj = None
        if dense:
            n = len(self.z)
            self.adj = torch.zeros(n, n)
            self.adj[self.edge[1], self.edge[0]] = 1.0


class Conv(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.self_ = nn.Linear(d, d)
        self.nbr = nn.Linear(d, d, bias=False)
        self.norm = nn.LayerNorm(d)

    def forward(self, h, b):
        m = self.nbr(h)
        if b.adj is not None:
            agg = b.adj @ m
        else:
            agg = torch.zeros_like(m).index_add(0, b.edge[1], m[b.edge[0]])
        return h + torch.relu(self.norm(self.self_(h) + agg))


class GapNet(nn.Module):
    def __init__(self, d=96, layers=4):
        super().__init__()
        self.emb = nn.Embedding(ELEMENTS, d)
        self.convs = nn.ModuleList(Conv(d) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, b):
        h = self.emb(b.z)
        for c in self.convs:
            h = c(h, b)
        pooled = torch.zeros(len(b.count), h.size(1)).index_add(0, b.owner, h) / b.count[:, None]
        return self.out(pooled).squeeze(-1)


def main(a):
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    mols = [random_molecule(g) for _ in range(1500)]
    model = GapNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    times = []
    t0 = last = time.perf_counter()
    mae = None
    while last - t0 < a.seconds:
        pick = torch.randint(0, len(mols), (128,)).tolist()
        b = Batch([mols[i] for i in pick], dense=not a.better)
        pred = model(b)
        loss = nn.functional.l1_loss(pred, b.gap)
        opt.zero_grad()
        loss.backward()
        opt.step()
        v = loss.item()
        mae = v if mae is None else 0.98 * mae + 0.02 * v
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 50 == 0:
            print(f"{len(times):5d} mae {mae:.4f} eV")
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    main(p.parse_args())
