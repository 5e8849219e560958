"""Churn prediction, DDP over two gloo ranks (torchrun)."""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def customers(rank, n=20_000, features=160):
    g = torch.Generator().manual_seed(rank)
    x = torch.randn(n, features, generator=g)
    y = ((x[:, :5].sum(1) + x[:, 5] * x[:, 6]) > 0).float()
    return x, y, g


def network(features=160, width=448):
    return nn.Sequential(
        nn.Linear(features, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 1),
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x, y, g = customers(rank)
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    times = []
    begin = time.perf_counter()
    stop = torch.zeros(1)
    while not stop:
        t = time.perf_counter()
        i = torch.randint(len(x), (2048,), generator=g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logit = model(x[i]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit.float(), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 5 == 0:
            stop.fill_(float(time.perf_counter() - begin > args.seconds))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{len(times)} steps, loss {loss.item():.3f}")
        if args.times:
            json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
