"""Data-parallel training without DDP, for the parallel computing practical (exercise 5).

Residue-contact classifier, two ranks, gloo.
"""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

WORLD = 2


class ResidueBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a = nn.Linear(d, d)
        self.b = nn.Linear(d, d)
        self.scale = nn.Parameter(torch.ones(d) * 0.1)

    def forward(self, x):
        return x + self.scale * self.b(F.gelu(self.a(self.norm(x))))


class ContactNet(nn.Module):
    def __init__(self, d=128, depth=8):
        super().__init__()
        self.inp = nn.Linear(42, d)
        self.blocks = nn.Sequential(*[ResidueBlock(d) for _ in range(depth)])
        self.out = nn.Linear(d, 3)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)))


def average_gradients(model, better):
    grads = [p.grad for p in model.parameters()]
    if better:
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        torch._foreach_copy_(grads, torch._utils._unflatten_dense_tensors(flat.div_(WORLD), grads))
        return
    for g in grads:
        dist.all_reduce(g)
        g.div_(WORLD)


def train(rank, args, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = ContactNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    g = torch.Generator().manual_seed(100 + rank)
    feats = torch.randn(4096, 42, generator=g)
    labels = (feats[:, :3].abs().argmax(1)).long()

    times = []
    go = torch.ones(1)
    begin = time.perf_counter()
    while True:
        t0 = time.perf_counter()
        ix = torch.randint(0, 4096, (512,), generator=g)
        loss = F.cross_entropy(model(feats[ix]), labels[ix])
        opt.zero_grad()
        loss.backward()
        average_gradients(model, args.better)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 10 == 0:
            go.fill_(float(time.perf_counter() - begin < args.seconds))
            dist.broadcast(go, 0)
            if go.item() == 0:
                break
        if rank == 0 and len(times) % 100 == 0:
            print(f"step {len(times)} loss {loss.item():.4f}", flush=True)

    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as d:
        mp.spawn(train, args=(args, os.path.join(d, "store")), nprocs=WORLD)
