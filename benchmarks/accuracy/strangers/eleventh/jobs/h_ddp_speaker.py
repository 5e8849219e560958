"""Speaker verification: x-vector network with additive-margin softmax, two gloo ranks.

torchrun --nproc-per-node 2 h_ddp_speaker.py
"""

import argparse
import contextlib
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

MELS, SPEAKERS, FRAMES = 40, 200, 160


class XVector(nn.Module):
    def __init__(self, width=112, embed=96):
        super().__init__()

        def tdnn(cin, cout, k, d):
            return nn.Sequential(nn.Conv1d(cin, cout, k, dilation=d), nn.ReLU(), nn.BatchNorm1d(cout))

        self.frames = nn.Sequential(
            tdnn(MELS, width, 5, 1), tdnn(width, width, 3, 2), tdnn(width, width, 3, 3), tdnn(width, 2 * width, 1, 1)
        )
        self.segment = nn.Linear(4 * width, embed)
        self.speakers = nn.Parameter(torch.randn(SPEAKERS, embed) * 0.1)

    def forward(self, x):
        h = self.frames(x)
        stats = torch.cat([h.mean(2), h.std(2)], 1)
        return F.linear(F.normalize(self.segment(stats)), F.normalize(self.speakers))


def am_softmax(cosine, y, margin=0.2, scale=30.0):
    shift = F.one_hot(y, SPEAKERS) * margin
    return F.cross_entropy(scale * (cosine - shift), y)


class Utterances:
    """Log-mel features of this rank's shard, held in memory with their different lengths."""

    def __init__(self, rank, count):
        g = torch.Generator().manual_seed(50 + rank)
        voices = torch.randn(SPEAKERS, MELS, 1, generator=torch.Generator().manual_seed(1))
        self.items = []
        for _ in range(count):
            who = int(torch.randint(SPEAKERS, (1,), generator=g))
            length = int(torch.randint(200, 500, (1,), generator=g))
            self.items.append((voices[who] + torch.randn(MELS, length, generator=g), who))

    def batch(self, size):
        crops, labels = [], []
        for feats, who in random.choices(self.items, k=size):
            first = random.randint(0, feats.shape[1] - FRAMES)
            crops.append(feats[:, first : first + FRAMES])
            labels.append(who)
        x = torch.stack(crops)
        return x - x.mean(2, keepdim=True) * 0.1, torch.tensor(labels)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--accumulate", type=int, default=2)
    args = ap.parse_args()
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29618")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    random.seed(rank)
    net = DDP(XVector(), gradient_as_bucket_view=args.better)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    shard = Utterances(rank, 600)
    times, step, begin = [], 0, time.perf_counter()
    while True:
        t0 = time.perf_counter()
        opt.zero_grad()
        report = torch.zeros(3)
        for k in range(args.accumulate):
            x, y = shard.batch(args.batch)
            with contextlib.nullcontext() if k == args.accumulate - 1 else net.no_sync():
                cosine = net(x)
                loss = am_softmax(cosine, y) / args.accumulate
                loss.backward()
            report[0] += loss.item()
            report[1] += (cosine.argmax(1) == y).float().mean().item() / args.accumulate
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        report[2] = time.perf_counter() - begin > args.seconds
        dist.all_reduce(report)
        times.append(time.perf_counter() - t0)
        if rank == 0 and step % 20 == 0:
            print(f"{step:5d} loss {report[0] / world:.3f} top1 {report[1] / world:.3f}", flush=True)
        step += 1
        if report[2] > 0:
            break
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
