"""Two-rank image training with accumulation, periodic metric reduction and rank-0 checkpoints."""

import argparse
import contextlib
import io
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--better", action="store_true", help="accepted, no effect")
parser.add_argument("--times")
args = parser.parse_args()


def make_model():
    layers, c = [], 3
    for w in (32, 64, 128):
        layers += [nn.Conv2d(c, w, 3, 2, 1), nn.GroupNorm(8, w), nn.ReLU()]
        c = w
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)  # two ranks on two cores
torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 3, 48, 48), torch.randint(0, 10, (2048,)))
sampler = DistributedSampler(data, world, rank, shuffle=True)
loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
model = DDP(make_model(), gradient_as_bucket_view=True)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

times, epoch, update = [], 0, 0
stop = torch.zeros(1)
begin = prev = time.perf_counter()
while not stop.item():
    sampler.set_epoch(epoch)
    epoch += 1
    running = torch.zeros(2)
    for i, (x, y) in enumerate(loader):
        boundary = i % 2 == 1
        with contextlib.nullcontext() if boundary else model.no_sync():
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            (loss / 2).backward()
        running += torch.tensor([loss.item(), 1.0])
        if not boundary:
            continue
        opt.step()
        opt.zero_grad()
        update += 1
        if update % 50 == 0:
            dist.all_reduce(running)
            if rank == 0:
                print(f"update {update} loss {(running[0] / running[1]).item():.4f}")
                snapshot = io.BytesIO()
                torch.save(model.module.state_dict(), snapshot)
            running.zero_()
        if update % 10 == 0:
            stop.fill_(float(time.perf_counter() - begin > args.seconds))
            dist.broadcast(stop, 0)
        now = time.perf_counter()
        times.append(now - prev)
        prev = now
        if stop.item():
            break
if rank == 0 and args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
dist.barrier()
dist.destroy_process_group()
