"""Data-parallel keystroke-dynamics encoder on event sequences of varied length."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

EVENTS, USERS, BATCH = 64, 20, 16


def sessions(n=1600, seed=0):
    g = torch.Generator().manual_seed(seed)
    lengths = (torch.rand(n, generator=g) ** 1.5 * 130 + 20).long().tolist()
    who = torch.randint(0, USERS, (n,), generator=g)
    items = []
    for length, u in zip(lengths, who.tolist()):
        seq = torch.randint(0, EVENTS, (length,), generator=g)
        seq[::3] = (u * 3 + seq[::3] % 5) % EVENTS
        items.append((seq, u))
    return sorted(items, key=lambda s: len(s[0]))


class Encoder(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.emb = nn.Embedding(EVENTS + 1, dim, padding_idx=EVENTS)
        self.pos = nn.Parameter(torch.randn(160, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, USERS)

    def forward(self, ids):
        pad = ids == EVENTS
        h = self.body(self.emb(ids) + self.pos[: ids.size(1)], src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1)
        return self.out((h * keep).sum(1) / keep.sum(1))


class LengthBatches:
    """Batches of like length, so that there is little padding; each rank takes its share."""

    def __init__(self, items, rank, world, weave):
        self.items = items
        chunks = [list(range(s, s + BATCH)) for s in range(0, len(items) - BATCH + 1, BATCH)]
        self.per_rank = len(chunks) // world
        if weave:
            self.mine = chunks[rank::world][: self.per_rank]
        else:
            self.mine = chunks[rank * self.per_rank : (rank + 1) * self.per_rank]
        self.epoch = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        self.epoch += 1
        for k in torch.randperm(self.per_rank, generator=g).tolist():
            seqs, who = zip(*[self.items[i] for i in self.mine[k]])
            yield pad_sequence(seqs, batch_first=True, padding_value=EVENTS), torch.tensor(who)


def endless(batches):
    while True:
        yield from batches


def train(args, rank, world):
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = endless(LengthBatches(sessions(), rank, world, weave=args.better))
    laps, go = [], torch.ones(1)
    t0 = prev = time.perf_counter()
    while go.item():
        ids, who = next(source)
        loss = F.cross_entropy(model(ids), who)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and len(laps) % 40 == 0:
            print(f"{len(laps)}: {loss.item():.3f}", flush=True)
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
        go.fill_(float(now - t0 < args.seconds))
        dist.broadcast(go, 0)
    return laps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    laps = train(args, rank, dist.get_world_size())
    if args.times and rank == 0:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
