"""Music-genre tagging from bag-of-frames codes, data-parallel with gradient accumulation.

torchrun --nproc-per-node 2 genre_ddp.py
"""

import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

CODES, TAGS = 2048, 24


class Tracks(Dataset):
    """Histogram of quantised frames per track, with soft multi-label tags."""

    def __init__(self, n=2400, seed=4):
        g = torch.Generator().manual_seed(seed)
        topics = torch.rand(TAGS, CODES, generator=g) ** 12
        self.tags = (torch.rand(n, TAGS, generator=g) < 0.12).float()
        rate = self.tags @ topics * 3 + 0.05
        self.hist = torch.poisson(rate, generator=g).log1p()

    def __len__(self):
        return len(self.hist)

    def __getitem__(self, i):
        return self.hist[i], self.tags[i]


class Tagger(nn.Module):
    def __init__(self, width=640):
        super().__init__()
        self.inp = nn.Linear(CODES, width)
        self.norm = nn.LayerNorm(width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, TAGS)

    def forward(self, x):
        h = F.gelu(self.norm(self.inp(x)))
        h = h + F.gelu(self.mid(h))
        return self.out(h)


class Trainer:
    def __init__(self, model, optim, accumulate, opt):
        self.model, self.optim, self.accumulate, self.opt = model, optim, accumulate, opt
        self.weight = torch.full((TAGS,), 3.0)

    def context(self, k):
        if self.opt.better and k < self.accumulate - 1:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def step(self, feed):
        total = torch.zeros(())
        self.optim.zero_grad(set_to_none=True)
        for k in range(self.accumulate):
            hist, tags = next(feed)
            with self.context(k):
                logits = self.model(hist)
                loss = F.binary_cross_entropy_with_logits(logits, tags, pos_weight=self.weight)
                (loss / self.accumulate).backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.optim.step()
        return total / self.accumulate


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def all_in(flag):
    vote = torch.tensor([1.0 if flag else 0.0])
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())


def train(opt):
    torch.manual_seed(0)
    data = Tracks()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=opt.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Tagger(), gradient_as_bucket_view=True)
    optim = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = Trainer(model, optim, opt.accumulate, opt)
    feed = endless(loader, sampler)

    times = []
    begin = last = time.perf_counter()
    while all_in(last - begin < opt.seconds):
        loss = trainer.step(feed)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if dist.get_rank() == 0 and len(times) % 25 == 0:
            print(f"update {len(times)} loss {loss.item():.4f}")
    return times


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    times = train(opt)
    if dist.get_rank() == 0 and opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
