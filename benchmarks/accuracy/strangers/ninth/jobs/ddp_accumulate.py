"""DDP with gradient accumulation: 2 ranks, 8 micro-batches per optimizer step."""

import argparse
import contextlib
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--accum", type=int, default=8)
    ap.add_argument("--micro-batch", type=int, default=24)
    return ap.parse_args()


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(2000, 128),
        nn.Flatten(),
        nn.Linear(16 * 128, 768),
        nn.ReLU(),
        nn.Linear(768, 768),
        nn.ReLU(),
        nn.Linear(768, 2000),
    )


class Trainer:
    def __init__(self, rank, world, args):
        self.rank, self.world, self.args = rank, world, args
        self.model = DDP(build_model())
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.gen = torch.Generator().manual_seed(rank)
        self.text = torch.randint(0, 2000, (50_000,), generator=self.gen)
        self.lossf = nn.CrossEntropyLoss()

    def micro_batch(self):
        at = torch.randint(0, len(self.text) - 17, (self.args.micro_batch,), generator=self.gen)
        win = self.text[at[:, None] + torch.arange(17)]
        return win[:, :-1], win[:, -1]

    def step(self):
        self.opt.zero_grad()
        total = 0.0
        for k in range(self.args.accum):
            x, y = self.micro_batch()
            last = k == self.args.accum - 1
            if self.args.better and not last:
                ctx = self.model.no_sync()
            else:
                ctx = contextlib.nullcontext()
            with ctx:
                loss = self.lossf(self.model(x), y) / self.args.accum
                loss.backward()
            total += loss.item()
        self.opt.step()
        return total

    def more(self, begin):
        flag = torch.tensor([float(time.perf_counter() - begin < self.args.seconds)])
        dist.broadcast(flag, 0)
        return flag.item() > 0


def main_worker(rank, world, port, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    tr = Trainer(rank, world, args)
    times = []
    begin = time.perf_counter()
    while tr.more(begin):
        t = time.perf_counter()
        loss = tr.step()
        times.append(time.perf_counter() - t)
    if rank == 0:
        print(f"{len(times)} steps, last loss {loss:.3f}")
        if args.times:
            with open(args.times, "w") as fh:
                json.dump(times, fh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    args = parse()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(main_worker, args=(2, port, args), nprocs=2)
