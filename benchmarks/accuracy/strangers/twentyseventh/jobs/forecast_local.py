"""Load forecasting with local steps: ranks train on their own regions and average weights now and then."""

import argparse
import gc
import json
import os
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("STEPS", 120))
HISTORY, HORIZON, SERIES, BATCH, LOCAL = 168, 24, 60, 320, 8


class TemporalNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Conv1d(3, width, 1)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=d, dilation=d) for d in (1, 2, 4, 8))
        self.head = nn.Linear(width * 7, HORIZON)

    def forward(self, x):
        h = self.inp(x)
        for conv in self.layers:
            h = h + F.glu(conv(h), 1)
        return self.head(F.avg_pool1d(h, 24).flatten(1))


def windows(rank):
    g = torch.Generator().manual_seed(rank)
    t = torch.arange(6000.0)
    load = torch.sin(t * 6.283 / 24 + torch.rand(SERIES, 1, generator=g) * 6)
    load = load + 0.3 * torch.sin(t * 6.283 / 168) + 0.1 * torch.randn(SERIES, 6000, generator=g)
    hour, week = torch.sin(t * 6.283 / 24), torch.sin(t * 6.283 / 168)
    span = torch.arange(HISTORY)
    while True:
        # regions report a varying number of meters each day
        n = BATCH + int(torch.randint(-12, 13, (1,), generator=g))
        s = torch.randint(0, SERIES, (n, 1), generator=g)
        at = torch.randint(0, 6000 - HISTORY - HORIZON, (n, 1), generator=g)
        idx = at + span
        yield torch.stack([load[s, idx], hour[idx], week[idx]], 1), load[s, at + HISTORY + torch.arange(HORIZON)]


class Averager:
    """Overlaps the averaging of the last weights with the next local step."""

    def __init__(self, params):
        self.params = params
        self.work = self.flat = self.base = None

    @torch.no_grad()
    def begin(self):
        self.base = torch.cat([p.view(-1) for p in self.params])
        self.flat = self.base / dist.get_world_size()
        self.work = dist.all_reduce(self.flat, async_op=True)

    @torch.no_grad()
    def finish(self):
        if self.work is None:
            return
        self.work.wait()
        delta = self.flat - self.base
        for p, d in zip(self.params, delta.split([p.numel() for p in self.params])):
            p += d.view_as(p)
        self.work = None


class Keeper:
    def __init__(self, rank):
        self.on = rank == 0
        self.path = os.path.join(tempfile.mkdtemp(), "forecast.pt") if self.on else None
        self.thread = None

    def save(self, net):
        if not self.on:
            return
        if self.thread is not None:
            self.thread.join()
        state = {k: v.clone() for k, v in net.state_dict().items()}
        self.thread = threading.Thread(target=torch.save, args=(state, self.path))
        self.thread.start()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = TemporalNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    avg, keeper, feed = Averager(list(net.parameters())), Keeper(rank), windows(rank)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = next(feed)
        loss = F.smooth_l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % LOCAL == LOCAL - 1:
            avg.begin()
        elif step % LOCAL == 1:
            avg.finish()
        if step % 24 == 23:
            keeper.save(net)
            gc.collect(0)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
        times.append(time.perf_counter() - t0)
    avg.finish()
    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
