"""ViT pretraining by masked patches, FSDP2 with prefetch."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = int(os.environ.get("STEPS", 120))
DIM, HEADS, DEPTH, PATCHES, PDIM, BATCH, PARTS = 128, 4, 4, 100, 108, 48, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class Pair(nn.Sequential):
    """Two blocks form one sharding unit."""


class MaskedViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PDIM, DIM)
        self.pos = nn.Parameter(torch.randn(1, PATCHES, DIM) * 0.02)
        self.mask = nn.Parameter(torch.zeros(DIM))
        self.units = nn.ModuleList(Pair(Block(), Block()) for _ in range(DEPTH // 2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, PDIM)

    def forward(self, x, hide):
        h = torch.where(hide[..., None], self.mask, self.embed(x)) + self.pos
        for u in self.units:
            h = u(h)
        return self.head(self.norm(h))


def build(mesh):
    torch.manual_seed(0)
    model = MaskedViT()
    for u in model.units:
        fully_shard(u, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for a, b in zip(model.units[:-1], model.units[1:]):
        a.set_modules_to_forward_prefetch([b])
    return model


def pictures(rank):
    g = torch.Generator().manual_seed(rank)
    pool = torch.rand(400, PATCHES, PDIM, generator=g)
    while True:
        idx = torch.randint(0, 400, (BATCH,), generator=g)
        yield pool[idx], torch.rand(BATCH, PATCHES, generator=g) < 0.6


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=True)
    feed = pictures(rank)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, hide = next(feed)
        loss = 0.0
        for i, (xs, hs) in enumerate(zip(x.chunk(PARTS), hide.chunk(PARTS))):
            last = i == PARTS - 1
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            part = (F.mse_loss(model(xs, hs), xs, reduction="none").mean(-1) * hs).sum() / hide.sum()
            part.backward()
            loss += part.detach()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if rank == 0 and step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        times.append(time.perf_counter() - t0)
    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
