"""Dialect classification of transcripts of varying length with a bidirectional GRU on two workers.

torchrun --nproc-per-node 2 dialect_ddp.py
"""

import argparse
import json
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

VOCAB, DIALECTS = 800, 6


def make_transcripts(n=3072, seed=10):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.2, 0.9, n), 6, 160).astype(np.int64)
    label = rng.integers(0, DIALECTS, n)
    texts = []
    for length, y in zip(lengths, label):
        ids = rng.integers(1, VOCAB, length)
        marked = rng.random(length) < 0.15
        ids[marked] = 1 + y * 40 + rng.integers(0, 40, marked.sum())
        texts.append(torch.from_numpy(ids))
    return texts, torch.from_numpy(label), lengths


class BucketBatches:
    """Batches of similar length for one worker; batch order is reshuffled each epoch."""

    def __init__(self, lengths, batch, rank, world, opt, seed=0):
        order = np.argsort(lengths, kind="stable")
        per = len(order) // world
        if opt.better:
            mine = order[rank : per * world : world]
        else:
            mine = order[rank * per : (rank + 1) * per]
        usable = len(mine) // batch * batch
        self.groups = mine[:usable].reshape(-1, batch)
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for g in self.rng.permutation(len(self.groups)):
            yield self.groups[g]


class TranscriptLoader:
    def __init__(self, texts, label, batches):
        self.texts, self.label, self.batches = texts, label, batches

    def __iter__(self):
        for rows in self.batches:
            ids = nn.utils.rnn.pad_sequence([self.texts[i] for i in rows], batch_first=True)
            yield ids, self.label[rows]


class DialectNet(nn.Module):
    def __init__(self, dim=64, hidden=80):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * hidden, 1)
        self.head = nn.Linear(2 * hidden, DIALECTS)

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        w = self.score(h).squeeze(-1).masked_fill(ids == 0, float("-inf")).softmax(1)
        return self.head((w.unsqueeze(-1) * h).sum(1))


def cycle(loader):
    while True:
        yield from loader


def carry_on(flag):
    vote = torch.tensor([1.0 if flag else 0.0])
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())


def train(opt):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    texts, label, lengths = make_transcripts()
    loader = TranscriptLoader(texts, label, BucketBatches(lengths, opt.batch, rank, world, opt))
    model = DistributedDataParallel(DialectNet(), gradient_as_bucket_view=True)
    optim = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    feed = cycle(loader)

    times, right, seen = [], torch.zeros(()), 0
    begin = last = time.perf_counter()
    while carry_on(last - begin < opt.seconds):
        ids, y = next(feed)
        logits = model(ids)
        loss = F.cross_entropy(logits, y)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        right += (logits.detach().argmax(1) == y).sum()
        seen += len(y)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if rank == 0 and len(times) % 60 == 0:
            print(f"step {len(times)} loss {loss.item():.4f} accuracy {right.item() / seen:.3f}")
            right.zero_()
            seen = 0
    return times


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=24)
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
