"""Two ranks, accumulation over four micro-batches, one reduction per step."""

import argparse, contextlib, json, os, socket, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class GRUTagger(nn.Module):
    def __init__(self, vocab=500, d=96, tags=9):
        super().__init__()
        self.e = nn.Embedding(vocab, d)
        self.conv = nn.Sequential(
            nn.Conv1d(d, 256, 5, padding=2), nn.ReLU(), nn.Conv1d(256, 256, 5, padding=2), nn.ReLU()
        )
        self.o = nn.Linear(256, tags)

    def forward(self, x):
        return self.o(self.conv(self.e(x).transpose(1, 2)).transpose(1, 2))


def log_rank0(rank, *what):
    if rank == 0:
        print(*what, flush=True)


def evaluate_all(net, rank):
    x = torch.randint(0, 500, (32, 40))
    with torch.no_grad():
        acc = (net.module(x).argmax(-1) == x % 9).float().mean()
    dist.all_reduce(acc)
    log_rank0(rank, "accuracy %.3f" % (acc.item() / 2))


def run(rank, port, a):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(GRUTagger(), broadcast_buffers=False, gradient_as_bucket_view=True)
    torch.manual_seed(rank + 1)
    opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)

    def step():
        opt.zero_grad()
        for i in range(4):
            ctx = net.no_sync() if i < 3 else contextlib.nullcontext()
            with ctx:
                x = torch.randint(0, 500, (12, 40))
                loss = nn.functional.cross_entropy(net(x).flatten(0, 1), (x % 9).flatten()) / 4
                loss.backward()
        opt.step()
        return loss.detach()

    t = time.perf_counter()
    for _ in range(4):
        step()
    est = torch.tensor((time.perf_counter() - t) / 4)
    dist.broadcast(est, 0)
    n = max(24, int(a.seconds / est.item()))
    ts = [time.perf_counter()]
    for k in range(n):
        loss = step()
        if k % 50 == 0:
            log_rank0(rank, k, "loss %.4f" % (4 * loss.item()))
        ts.append(time.perf_counter())
    dist.barrier()
    evaluate_all(net, rank)
    if rank == 0 and a.times:
        json.dump([q - p for p, q in zip(ts, ts[1:])], open(a.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.start_processes(run, args=(port, a), nprocs=2, start_method="fork")
