"""Language model on historical letters, two workers: torchrun --nproc-per-node 2 letters_ddp.py"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCAB = 2000
LONGEST = 160


def letters(n=3000, seed=3):
    """Letters as token ids, in the order of the archive's index (by length)."""
    g = torch.Generator().manual_seed(seed)
    lengths = (6 + torch.empty(n).exponential_(1 / 45.0, generator=g)).clamp_(max=LONGEST).long()
    return [torch.randint(1, VOCAB, (k,), generator=g) for k in lengths.sort().values.tolist()]


def bucketed(texts, size):
    groups = [texts[i : i + size] for i in range(0, len(texts) - size + 1, size)]
    return [nn.utils.rnn.pad_sequence(group, batch_first=True) for group in groups]


def share(groups, rank, world, alternate=False):
    per = len(groups) // world
    if alternate:
        return groups[rank::world][:per]
    return groups[rank * per : (rank + 1) * per]


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class LetterModel(nn.Module):
    def __init__(self, dim=96, heads=4, depth=3):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim, padding_idx=0), nn.Embedding(LONGEST, dim)
        self.layers = nn.Sequential(*(Layer(dim, heads) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.out(self.norm(self.layers(x)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--batch", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    torch.manual_seed(0)

    groups = share(bucketed(letters(), args.batch), rank, world, args.better)
    ddp = DistributedDataParallel(LetterModel(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=6e-4, weight_decay=0.05, fused=True)
    order = torch.Generator().manual_seed(9)

    times, step, epoch = [], 0, 0
    going = torch.ones(1)
    begin = time.perf_counter()
    while going.item():
        for i in torch.randperm(len(groups), generator=order).tolist():
            t0 = time.perf_counter()
            ids = groups[i]
            logits = ddp(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            step += 1
            times.append(time.perf_counter() - t0)
            if step % 20 == 0:
                going.fill_(time.perf_counter() - begin < args.seconds)
                dist.broadcast(going, 0)
                if not going.item():
                    break
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
