"""Road segmentation on aerial patches, two workers: torchrun --nproc-per-node 2 roads_ddp.py"""

import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Patches:
    """Aerial patches with road masks; every worker reads its own part."""

    def __init__(self, n, side, rank, world):
        g = torch.Generator().manual_seed(17)
        x = torch.rand(n, 3, side, side, generator=g)
        line = torch.rand(n, 1, 1, generator=g) * side
        slope = torch.randn(n, 1, 1, generator=g)
        yy, xx = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        mask = ((xx - line - slope * (yy - side / 2)).abs() < 3).float()
        x[:, 1] = 0.5 * x[:, 1] + 0.4 * mask
        self.x, self.y = x[rank::world].contiguous(memory_format=torch.channels_last), mask[rank::world]
        self.g = torch.Generator().manual_seed(100 + rank)

    def batches(self, size):
        while True:
            for idx in torch.randperm(len(self.x), generator=self.g).split(size):
                if len(idx) == size:
                    yield self.x[idx], self.y[idx]


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(8, cout), nn.ReLU(inplace=True))


class RoadNet(nn.Module):
    def __init__(self, widths=(16, 48, 128, 448)):
        super().__init__()
        a, b, c, d = widths
        self.e1 = conv(3, a, 2)
        self.e2 = conv(a, b, 2)
        self.e3 = conv(b, c, 2)
        self.e4 = nn.Sequential(conv(c, d, 2), conv(d, d), conv(d, d))
        self.d3 = conv(d + c, c)
        self.d2 = conv(c + b, b)
        self.d1 = conv(b + a, a)
        self.out = nn.Conv2d(a, 1, 1)

    def forward(self, x):
        e1 = self.e1(x)
        e2 = self.e2(e1)
        e3 = self.e3(e2)
        y = self.e4(e3)
        for skip, block in ((e3, self.d3), (e2, self.d2), (e1, self.d1)):
            y = block(torch.cat([F.interpolate(y, scale_factor=2), skip], 1))
        return F.interpolate(self.out(y), scale_factor=2, mode="bilinear").squeeze(1)


def road_loss(logits, mask):
    prob = logits.sigmoid()
    dice = 1 - (2 * (prob * mask).sum() + 1) / (prob.sum() + mask.sum() + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--accumulate", type=int, default=6)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    torch.manual_seed(0)

    data = Patches(400, 48, rank, world).batches(args.batch)
    model = RoadNet().to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3, fused=True)

    times, step = [], 0
    begin = time.perf_counter()
    going = torch.ones(1)
    while True:
        t0 = time.perf_counter()
        total = torch.zeros(())
        for i in range(args.accumulate):
            x, y = next(data)
            hold = args.better and i < args.accumulate - 1
            with ddp.no_sync() if hold else contextlib.nullcontext():
                loss = road_loss(ddp(x), y) / args.accumulate
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        times.append(time.perf_counter() - t0)
        if step % 10 == 0:
            going.fill_(time.perf_counter() - begin < args.seconds)
            dist.broadcast(going, 0)
            if rank == 0:
                print(f"step {step} loss {total.item():.4f}")
            if not going.item():
                break
    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
