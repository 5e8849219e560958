"""Two-rank data parallel training of a seismic phase picker, gradients averaged by hand.

torchrun --nproc-per-node 2 seismic_dp.py
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class SepConv(nn.Module):
    def __init__(self, c, k=7):
        super().__init__()
        self.dw = nn.Conv1d(c, c, k, padding=k // 2, groups=c)
        self.pw = nn.Conv1d(c, c, 1)
        self.gn = nn.GroupNorm(4, c)

    def forward(self, x):
        return x + torch.relu(self.gn(self.pw(self.dw(x))))


class Picker(nn.Module):
    def __init__(self, channels=32, depth=7):
        super().__init__()
        self.stem = nn.Conv1d(3, channels, 15, stride=4, padding=7)
        self.trunk = nn.Sequential(*[SepConv(channels) for _ in range(depth)])
        self.head = nn.Conv1d(channels, 3, 1)

    def forward(self, wave):
        return self.head(self.trunk(self.stem(wave)))


def fake_batch(g, n, length=512):
    wave = torch.randn(n, 3, length, generator=g)
    onset = torch.randint(40, length - 40, (n,), generator=g)
    t = torch.arange(length)
    envelope = (t[None] > onset[:, None]).float() * torch.exp(-(t[None] - onset[:, None]).clamp(min=0) / 60)
    wave = wave * (0.2 + envelope[:, None])
    label = (t[None, ::4] > onset[:, None]).long() + (t[None, ::4] > onset[:, None] + 30).long()
    return wave, label


def sync_each(params, world):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world


def sync_flat(params, world):
    flat = torch.cat([p.grad.view(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=24)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = Picker()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(100 + rank)
    sync = sync_flat if args.better else sync_each
    times = []
    start = time.perf_counter()
    while True:
        t = time.perf_counter()
        wave, label = fake_batch(g, args.batch)
        loss = nn.functional.cross_entropy(model(wave), label)
        opt.zero_grad()
        loss.backward()
        sync(params, world)
        opt.step()
        times.append(time.perf_counter() - t)
        done = torch.tensor(float(time.perf_counter() - start > args.seconds))
        dist.all_reduce(done, op=dist.ReduceOp.MAX)
        if done:
            break
    if rank == 0:
        print(f"{len(times)} steps, loss {loss.item():.3f}")
        if args.times:
            json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
