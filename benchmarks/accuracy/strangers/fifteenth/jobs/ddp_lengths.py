"""Two-rank GRU language identification; sentences are kept ordered by length so that batches need little padding."""

import argparse
import json
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence


class LangID(nn.Module):
    def __init__(self, chars=200, dim=48, hidden=128, languages=20):
        super().__init__()
        self.emb = nn.Embedding(chars, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, languages)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h.amax(1))


def corpus(n=2048, seed=0):
    rnd = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    sents = [torch.randint(1, 200, (int(10 + 90 * rnd.random() ** 2),), generator=g) for _ in range(n)]
    sents.sort(key=len)
    return sents, torch.randint(0, 20, (n,), generator=g)


class Share:
    """Batches of neighbours in length for one rank."""

    def __init__(self, sents, labels, rank, world, size, alternate):
        batches = [list(range(k, k + size)) for k in range(0, len(sents) - size + 1, size)]
        per = len(batches) // world
        self.batches = batches[rank::world][:per] if alternate else batches[rank * per : (rank + 1) * per]
        self.sents, self.labels = sents, labels
        self.epoch = 0

    def __iter__(self):
        while True:
            order = list(range(len(self.batches)))
            random.Random(self.epoch).shuffle(order)
            for b in order:
                rows = self.batches[b]
                yield pad_sequence([self.sents[r] for r in rows], batch_first=True), self.labels[rows]
            self.epoch += 1


def run(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(LangID())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    share = iter(Share(*corpus(), rank, world, 32, args.better))
    times, flag = [], torch.zeros(1)
    begin = time.perf_counter()
    while True:
        t = time.perf_counter()
        flag[0] = t - begin > args.seconds
        dist.broadcast(flag, src=0)
        if flag.item():
            break
        ids, y = next(share)
        loss = nn.functional.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    if rank == 0:
        print("steps", len(times), "loss", loss.item())
        if args.times:
            json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        run(args)
        dist.barrier()
    finally:
        dist.destroy_process_group()
