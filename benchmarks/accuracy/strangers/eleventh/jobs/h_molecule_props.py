"""Message-passing network for solubility of small molecules, edge-conditioned, with an EMA copy."""

import argparse
import copy
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

ATOMS, BONDS = 16, 4


@dataclass
class Molecule:
    atoms: torch.Tensor
    edges: torch.Tensor
    bonds: torch.Tensor
    target: float


def random_molecule():
    n = random.randint(12, 32)
    pairs = [(i, random.randint(max(0, i - 4), i - 1)) for i in range(1, n)]
    pairs += [tuple(random.sample(range(n), 2)) for _ in range(n // 6)]
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).T.contiguous()
    bonds = torch.randint(BONDS, (len(pairs),)).repeat(2)
    atoms = torch.randint(ATOMS, (n,))
    return Molecule(atoms, edges, bonds, float((atoms < 4).float().mean() * 4 - bonds.float().mean()))


class Library(Dataset):
    def __init__(self, molecules):
        self.molecules = molecules

    def __len__(self):
        return len(self.molecules)

    def __getitem__(self, i):
        return self.molecules[i]


def join(molecules):
    atoms, edges, bonds, owner, targets, offset = [], [], [], [], [], 0
    for k, m in enumerate(molecules):
        atoms.append(m.atoms)
        edges.append(m.edges + offset)
        bonds.append(m.bonds)
        owner.extend([k] * len(m.atoms))
        targets.append(m.target)
        offset += len(m.atoms)
    return torch.cat(atoms), torch.cat(edges, 1), torch.cat(bonds), torch.tensor(owner), torch.tensor(targets)


class MPNN(nn.Module):
    def __init__(self, width=128, rounds=4):
        super().__init__()
        self.atom, self.bond = nn.Embedding(ATOMS, width), nn.Embedding(BONDS, width)
        self.message = nn.ModuleList(
            [nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(rounds)]
        )
        self.update = nn.GRUCell(width, width)
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, atoms, edges, bonds, owner, count):
        h, b = self.atom(atoms), self.bond(bonds)
        src, dst = edges
        for net in self.message:
            m = net(torch.cat([h[src], b], 1))
            h = self.update(torch.zeros_like(h).index_add(0, dst, m), h)
        pooled = h.new_zeros(count, h.shape[1]).index_add(0, owner, h)
        return self.readout(pooled).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    random.seed(6)
    torch.manual_seed(6)
    loader = DataLoader(
        Library([random_molecule() for _ in range(3000)]),
        args.batch,
        shuffle=True,
        collate_fn=join,
        drop_last=True,
        num_workers=0,
    )
    net = MPNN()
    ema = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4, fused=True)
    scratch = tempfile.TemporaryDirectory()
    times, losses, step, begin = [], [], 0, time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        for atoms, edges, bonds, owner, target in loader:
            loss = F.huber_loss(net(atoms, edges, bonds, owner, len(target)), target)
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            if not args.better and not torch.isfinite(norm):
                continue
            opt.step()
            if not args.better or step % 10 == 0:
                with torch.no_grad():
                    for e, p in zip(ema.parameters(), net.parameters()):
                        e.lerp_(p, 0.01)
            losses.append(loss.item())
            step += 1
            if step % 100 == 0:
                torch.save({"net": net.state_dict(), "ema": ema.state_dict()}, os.path.join(scratch.name, "last.pt"))
                print(f"step {step} huber {sum(losses[-100:]) / 100:.4f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - begin > args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))
    scratch.cleanup()


if __name__ == "__main__":
    main()
