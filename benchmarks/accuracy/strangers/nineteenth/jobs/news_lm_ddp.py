"""Word-level language model on news text, data parallel on two processes, with gradient accumulation."""

import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

VOCAB, DIM, SEQ, MICRO, ACCUM = 8000, 192, 24, 1, 4


class NewsLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(SEQ, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQ))

    def forward(self, x):
        h = self.blocks(self.tok(x) + self.pos, mask=self.mask, is_causal=True)
        return F.linear(self.norm(h), self.tok.weight)


corpus = torch.randint(0, VOCAB, (200_000,), generator=torch.Generator().manual_seed(rank))
offsets = torch.arange(SEQ + 1)


def get_batch():
    begin = torch.randint(0, len(corpus) - SEQ - 1, (MICRO, 1))
    chunk = corpus[begin + offsets]
    return chunk[:, :-1], chunk[:, 1:]


model = DDP(NewsLM(), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

times, step = [], 0
keep_going = torch.ones(1)
start = time.perf_counter()
while True:
    t0 = time.perf_counter()
    total = 0.0
    for micro in range(ACCUM):
        x, y = get_batch()
        last = micro == ACCUM - 1
        with model.no_sync() if args.better and not last else contextlib.nullcontext():
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) / ACCUM
            loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - t0)
    step += 1
    if rank == 0 and step % 20 == 0:
        print(f"step {step} loss {total:.4f}", flush=True)
    if step % 5 == 0:
        keep_going.fill_(float(time.perf_counter() - start < args.seconds))
        dist.broadcast(keep_going, 0)
        if not keep_going.item():
            break

if rank == 0 and args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
dist.destroy_process_group()
