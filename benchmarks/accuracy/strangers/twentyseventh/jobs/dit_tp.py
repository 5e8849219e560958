"""Latent diffusion transformer trained with tensor parallelism over the block projections."""

import argparse
import json
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
DIM, HEADS, DEPTH, TOKENS, BATCH = 192, 6, 4, 144, 12


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.head_dim = dim // heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, _ = x.shape

        def heads(y):
            return y.view(b, t, -1, self.head_dim).transpose(1, 2)

        y = F.scaled_dot_product_attention(heads(self.q(x)), heads(self.k(x)), heads(self.v(x)))
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.up = nn.Linear(dim, dim * mult)
        self.down = nn.Linear(dim * mult, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.attn = Attention(dim, heads)
        self.ff = FeedForward(dim)
        self.mod = nn.Linear(dim, 6 * dim)

    def forward(self, x, c):
        s1, g1, a1, s2, g2, a2 = self.mod(F.silu(c)).unsqueeze(1).chunk(6, dim=-1)
        x = x + a1 * self.attn(self.norm1(x) * (1 + g1) + s1)
        return x + a2 * self.ff(self.norm2(x) * (1 + g2) + s2)


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(16, DIM)
        self.pos = nn.Parameter(torch.randn(1, TOKENS, DIM) * 0.02)
        self.cls = nn.Embedding(100, DIM)
        self.time = nn.Sequential(nn.Linear(64, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(DEPTH))
        self.head = nn.Linear(DIM, 16)

    def forward(self, x, t, y):
        freq = torch.exp(-math.log(1e4) * torch.arange(32) / 32)
        ang = t[:, None] * freq[None] * 1000
        c = self.time(torch.cat([ang.sin(), ang.cos()], -1)) + self.cls(y)
        h = self.patch(x) + self.pos
        for blk in self.blocks:
            h = blk(h, c)
        return self.head(h)


def block_plan():
    plan = {
        "attn.q": ColwiseParallel(),
        "attn.k": ColwiseParallel(),
        "attn.v": ColwiseParallel(),
        "attn.out": RowwiseParallel(),
    }
    if CURED:
        plan["ff.up"] = ColwiseParallel()
        plan["ff.down"] = RowwiseParallel()
    else:
        plan["ff.up"] = ColwiseParallel(output_layouts=Replicate())
        plan["ff.down"] = RowwiseParallel(input_layouts=Replicate())
    return plan


def latents(seed):
    g = torch.Generator().manual_seed(seed)
    pool = torch.randn(2048, TOKENS, 16, generator=g)
    labels = torch.randint(0, 100, (2048,), generator=g)
    while True:
        idx = torch.randint(0, 2048, (BATCH,), generator=g)
        x0 = pool[idx]
        t = torch.rand(BATCH, generator=g)
        noise = torch.randn(x0.shape, generator=g)
        yield x0, labels[idx], t, noise


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = DiT()
    for blk in model.blocks:
        parallelize_module(blk, mesh["tp"], block_plan())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    stream = latents(7)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x0, y, t, noise = next(stream)
        tt = t[:, None, None]
        xt = (1 - tt) * x0 + tt * noise
        loss = F.mse_loss(model(xt, t, y), noise - x0)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        times.append(time.perf_counter() - t0)
    if args.times and dist.get_rank() == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
