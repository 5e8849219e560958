"""Two-process DDP with gradient accumulation (no_sync) for a GRU tagger."""

import argparse
import contextlib
import json
import os
import socket
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Tagger(nn.Module):
    def __init__(self, vocab=1500, d=128, tags=9):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, tags)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def save(model, opt, step, folder):
    torch.save(
        {"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step}, os.path.join(folder, "last.pt")
    )


def run(rank, world, port, args, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger(), gradient_as_bucket_view=True)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    gen = torch.Generator().manual_seed(100 + rank)
    x_all = torch.randint(0, 1500, (2000, 32), generator=gen)
    y_all = (x_all + x_all.roll(1, 1)) % 9
    accum, times, begin = 3, [], time.perf_counter()
    stop = torch.zeros(1)
    while not stop.item():
        t0 = time.perf_counter()
        total = 0.0
        for k in range(accum):
            idx = torch.randint(0, 2000, (6,), generator=gen)
            with model.no_sync() if k < accum - 1 else contextlib.nullcontext():
                loss = F.cross_entropy(model(x_all[idx]).flatten(0, 1), y_all[idx].flatten()) / accum
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        stop[0] = float(rank == 0 and time.perf_counter() - begin > args.seconds)
        dist.all_reduce(stop)
        times.append(time.perf_counter() - t0)
        if rank == 0 and len(times) % 25 == 0:
            print(f"step {len(times)} loss {total:.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        save(model, opt, len(times), folder)
        if args.times:
            json.dump(times, open(args.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(2, port, args, folder), nprocs=2)
