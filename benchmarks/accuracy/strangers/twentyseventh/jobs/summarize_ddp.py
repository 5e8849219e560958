"""Encoder-decoder summarizer under DDP; documents are packed into batches by a token budget."""

import argparse
import gc
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", 120))
VOCAB, DIM, HEADS, DEPTH, BUDGET, SUMMARY = 1200, 192, 6, 3, 1728, 24


def packed(rank):
    """Batches of similar length whose padded size is as near to the budget as the lengths allow."""
    g = torch.Generator().manual_seed(rank)
    while True:
        length = int((torch.randn(1, generator=g) * 18 + 72).clamp(40, 128))
        n = max(1, round(BUDGET / length))
        src = torch.randint(1, VOCAB, (n, length), generator=g)
        n_tgt = max(4, round(SUMMARY * 32 / n))
        tgt = torch.randint(1, VOCAB, (n, min(n_tgt, 40)), generator=g)
        yield src, tgt


class Summarizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(160, DIM)
        self.core = nn.Transformer(DIM, HEADS, DEPTH, DEPTH, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(DIM, VOCAB)

    def read(self, ids):
        return self.emb(ids) + self.pos.weight[: ids.shape[1]]

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return self.out(self.core(self.read(src), self.read(tgt), tgt_mask=mask, tgt_is_causal=True))


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = DDP(Summarizer(), gradient_as_bucket_view=True, static_graph=True)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: min(1.0, (s + 1) / 50))
        self.data = packed(self.rank)
        self.running = torch.zeros(())

    def step(self, i):
        src, tgt = next(self.data)
        logits = self.model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten())
        loss.backward()
        self.opt.step()
        self.sched.step()
        self.opt.zero_grad(set_to_none=False)
        self.running += loss.detach()
        if i % 40 == 39:
            dist.all_reduce(self.running)
            if self.rank == 0:
                print(f"step {i} loss {self.running.item() / 40 / dist.get_world_size():.3f}", flush=True)
            self.running.zero_()
            gc.collect(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    tr = Trainer()
    times = []
    for i in range(STEPS):
        t0 = time.perf_counter()
        tr.step(i)
        times.append(time.perf_counter() - t0)
    if args.times and tr.rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
