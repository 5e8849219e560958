"""Two-process training with gradient accumulation (torchrun --nproc-per-node 2)."""

import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUM = 4


def build():
    return nn.Sequential(
        nn.EmbeddingBag(20_000, 256, mode="mean"),
        nn.Linear(256, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 50),
    )


def micro_batches(rank):
    g = torch.Generator().manual_seed(rank)
    while True:
        docs = torch.randint(0, 20_000, (32, 40), generator=g)
        yield docs, torch.randint(0, 50, (32,), generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    stream = micro_batches(rank)

    times, go = [], torch.ones(1)
    start = time.perf_counter()
    while go.item():
        tic = time.perf_counter()
        optimizer.zero_grad()
        for k in range(ACCUM):
            docs, target = next(stream)
            last = k == ACCUM - 1
            scope = model.no_sync() if args.better and not last else contextlib.nullcontext()
            with scope:
                loss = loss_fn(model(docs), target) / ACCUM
                loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - tic)
        go.fill_(float(time.perf_counter() - start < args.seconds))
        dist.broadcast(go, 0)

    if rank == 0:
        print(f"{len(times)} updates, loss {loss.item() * ACCUM:.3f}")
        if args.times:
            with open(args.times, "w") as f:
                json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
