"""Two ranks with gradient accumulation over six micro-batches; a large embedding."""

import argparse
import contextlib
import json
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12000, 128)
        self.rnn = nn.GRU(128, 128, batch_first=True)
        self.out = nn.Linear(128, 1200)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def train(rank, port, args, accumulate=6):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    times, stop = [], torch.zeros(1)
    start = last = time.perf_counter()
    for step in range(1_000_000):
        optimizer.zero_grad()
        for micro in range(accumulate):
            x, y = torch.randint(0, 12000, (4, 16)), torch.randint(0, 1200, (4, 16))
            local = micro < accumulate - 1
            with model.no_sync() if local else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accumulate
                loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if step % 10 == 9:
            stop.fill_(float(now - start > args.seconds))
            dist.broadcast(stop, 0)
            if stop.item():
                break
    if rank == 0 and args.times:
        json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(train, args=(port, args), nprocs=2)


if __name__ == "__main__":
    main()
