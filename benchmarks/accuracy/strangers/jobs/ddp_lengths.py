"""Two ranks, each with its own shard of utterances; the shards are cut by speaker."""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Transcriber(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Linear(40, 128)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0) for _ in range(2)
        )
        self.out = nn.Linear(128, 32)

    def forward(self, x):
        x = self.front(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def lengths_of(rank, mixed):
    g = torch.Generator().manual_seed(7 if mixed else rank)
    if mixed:
        return torch.randint(60, 180, (400,), generator=g)
    short, long = (60, 100), (180, 240)
    low, high = long if rank == 1 else short
    return torch.randint(low, high, (400,), generator=g)


def train(rank, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(Transcriber())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lengths = lengths_of(rank, args.better)
    times, stop = [], torch.zeros(1)
    start = last = time.perf_counter()
    for step in range(1_000_000):
        frames = int(lengths[step % 400])
        x, y = torch.randn(8, frames, 40), torch.randint(0, 32, (8, frames))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
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
