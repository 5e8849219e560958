"""GRU language model on call transcripts, data parallel over two CPU processes."""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

VOCAB = 2000


class Transcripts:
    def __init__(self, n=2000):
        g = torch.Generator().manual_seed(7)
        lengths = (torch.rand(n, generator=g).pow(2) * 110 + 10).long().sort().values
        self.docs = [torch.randint(1, VOCAB, (int(k),), generator=g) for k in lengths]


class ShardSampler:
    def __init__(self, data, rank, world, interleave):
        n = len(data.docs)
        if interleave:
            self.mine = list(range(rank, n, world))
        else:
            part = n // world
            self.mine = list(range(rank * part, (rank + 1) * part))
        self.g = torch.Generator().manual_seed(99)

    def batches(self, size):
        while True:
            order = torch.randperm(len(self.mine) // size, generator=self.g).tolist()
            for b in order:
                yield self.mine[b * size : (b + 1) * size]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 96)
        self.rnn = nn.GRU(96, 160, batch_first=True)
        self.out = nn.Linear(160, VOCAB)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids[:, :-1]))
        return nn.functional.cross_entropy(self.out(h).transpose(1, 2), ids[:, 1:], ignore_index=0)


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
data = Transcripts()
sampler = ShardSampler(data, rank, world, interleave=args.better)
model = DistributedDataParallel(LM())
opt = torch.optim.Adam(model.parameters(), lr=1e-3)

times = []
flag = torch.zeros(1)
t_begin = t_prev = time.perf_counter()
for index in sampler.batches(8):
    ids = pad_sequence([data.docs[i] for i in index], batch_first=True)
    loss = model(ids)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0 and time.perf_counter() - t_begin > args.seconds:
        flag.fill_(1)
    dist.broadcast(flag, 0)
    now = time.perf_counter()
    times.append(now - t_prev)
    t_prev = now
    if flag.item():
        break
if rank == 0:
    print("batches", len(times))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
dist.barrier()
dist.destroy_process_group()
