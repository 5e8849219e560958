"""Distributed (2 ranks) pre-training of a report encoder; documents are bucketed by length."""

import argparse
import json
import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM

VOCAB, BATCH = 1500, 8


def documents(n=6400):
    rnd = random.Random(0)
    docs = []
    for _ in range(n):
        length = int(min(160, max(12, rnd.expovariate(1 / 55))))
        docs.append([rnd.randrange(5, VOCAB) for _ in range(length)])
    return docs


def make_batches(docs):
    docs = sorted(docs, key=len)
    return [docs[i : i + BATCH] for i in range(0, len(docs), BATCH)]


def shard(batches, rank, world, interleave):
    if interleave:
        return batches[rank::world]
    per_rank = len(batches) // world
    return batches[rank * per_rank : (rank + 1) * per_rank]


def masked(rows, gen):
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, : len(r)] = torch.tensor(r)
    attention = (ids > 0).long()
    hide = (torch.rand(ids.shape, generator=gen) < 0.15) & (ids > 0)
    hide[:, 0] = True
    labels = ids.masked_fill(~hide, -100)
    return {"input_ids": ids.masked_fill(hide, 1), "attention_mask": attention, "labels": labels}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=18)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cfg = BertConfig(
        vocab_size=VOCAB,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=160,
    )
    model = DistributedDataParallel(BertForMaskedLM(cfg))
    opt = torch.optim.AdamW(model.parameters(), 5e-4, fused=True)
    mine = shard(make_batches(documents()), rank, world, interleave=args.better)
    order = random.Random(7)  # the same order of buckets on both ranks
    gen = torch.Generator().manual_seed(rank)

    times = []
    start = last = time.perf_counter()
    for epoch in range(5):
        order.shuffle(perm := list(range(len(mine))))
        for k, j in enumerate(perm):
            loss = model(**masked(mine[j], gen)).loss
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if k % 10 == 9:
                elapsed = torch.tensor([now - start])
                dist.broadcast(elapsed, 0)
                if rank == 0 and k % 50 == 49:
                    print(f"epoch {epoch} batch {k + 1} loss {loss.item():.3f}")
                if elapsed.item() > args.seconds:
                    break
        if elapsed.item() > args.seconds:
            break
    if args.times and rank == 0:
        json.dump(times, open(args.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
