"""Fills gaps in wind fields with a recurrent-depth transformer (one block applied many times), two ranks, DDP.

torchrun --nproc-per-node 2 windfields.py
"""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stopwatch import Stopwatch

GPU = torch.cuda.is_available()
DEVICE = "cuda:0" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
WIDTH, HEADS, DEPTH, FIELDS, CELLS, VARIABLES = (512, 8, 8, 32, 1024, 32) if GPU else (32, 4, 3, 2, 16, 8)
ACCUMULATE = 2


def setup():
    os.environ["NCCL_HOSTID"] = "host" + os.environ["RANK"]
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
    os.environ.setdefault("NCCL_P2P_DISABLE", "1")
    os.environ.setdefault("NCCL_SHM_DISABLE", "1")
    if GPU:
        torch.cuda.set_device(0)
    dist.init_process_group(os.environ.get("BACKEND", "nccl" if GPU else "gloo"))
    return dist.get_rank()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.merge = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + self.merge(y)
        return x + self.mlp(self.second(x))


class GapFiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(VARIABLES, WIDTH)
        self.places = nn.Parameter(torch.randn(CELLS, WIDTH) * 0.02)
        self.block = Block()
        self.leave = nn.Linear(WIDTH, VARIABLES)

    def forward(self, x):
        x = self.enter(x) + self.places
        for _ in range(DEPTH):
            x = self.block(x)
        return self.leave(x)


def main():
    rank = setup()
    torch.manual_seed(2)
    model = DDP(GapFiller().to(DEVICE, DTYPE), device_ids=[0] if GPU else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    torch.manual_seed(50 + rank)
    fields = torch.randn(16, FIELDS, CELLS, VARIABLES, device=DEVICE, dtype=DTYPE)
    gaps = torch.rand(16, FIELDS, CELLS, 1, device=DEVICE) < 0.3
    average = torch.zeros((), device=DEVICE)
    number = 0
    clock = Stopwatch()
    while True:
        for turn in range(ACCUMULATE):
            field, gap = fields[number % 16], gaps[number % 16]
            with contextlib.nullcontext() if turn == ACCUMULATE - 1 else model.no_sync():
                filled = model(field.masked_fill(gap, 0))
                loss = ((filled - field).float().square() * gap).mean() / ACCUMULATE
                loss.backward()
            average.lerp_(loss.detach(), 0.02)
            number += 1
        optimizer.step()
        optimizer.zero_grad()
        if clock.tick():
            break
    if rank == 0:
        print(f"loss {average.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
