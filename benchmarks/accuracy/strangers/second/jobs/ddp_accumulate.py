"""Two-rank data parallel training with gradient accumulation (gloo)."""

import argparse, json, os, socket, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUM = 8


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def build():
    d = 640
    return nn.Sequential(
        nn.Linear(200, d),
        nn.GELU(),
        nn.Linear(d, d),
        nn.GELU(),
        nn.Linear(d, d),
        nn.GELU(),
        nn.Linear(d, d),
        nn.GELU(),
        nn.Linear(d, 50),
    )


class MicroBatches:
    def __init__(self, model, accum, defer):
        self.model, self.accum, self.defer = model, accum, defer

    def backward(self, i, loss_fn):
        last = i == self.accum - 1
        if self.defer and not last:
            with self.model.no_sync():
                loss = loss_fn() / self.accum
                loss.backward()
        else:
            loss = loss_fn() / self.accum
            loss.backward()
        return loss.detach()


def one_step(model, opt, acc, x, y):
    opt.zero_grad()
    total = 0.0
    for i in range(acc.accum):
        total = total + acc.backward(i, lambda: nn.functional.cross_entropy(model(x[i]), y[i]))
    opt.step()
    return total


def worker(rank, world, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DDP(build())
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    acc = MicroBatches(model, ACCUM, args.better)
    x, y = torch.randn(ACCUM, 24, 200), torch.randint(0, 50, (ACCUM, 24))
    t0 = time.perf_counter()
    for _ in range(3):  # warm-up, also tells how many steps fit
        one_step(model, opt, acc, x, y)
    est = torch.tensor((time.perf_counter() - t0) / 3)
    dist.broadcast(est, 0)
    steps = max(24, int(args.seconds / est.item()))
    times, prev = [], time.perf_counter()
    for s in range(steps):
        loss = one_step(model, opt, acc, x, y)
        now = time.perf_counter()
        times.append(now - prev)
        prev = now
        if rank == 0 and s % 20 == 0:
            print(f"step {s}/{steps} loss {loss.item():.4f}", flush=True)
    if rank == 0 and args.times:
        json.dump(times, open(args.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    args = p.parse_args()
    mp.start_processes(worker, args=(2, free_port(), args), nprocs=2, start_method="fork")
