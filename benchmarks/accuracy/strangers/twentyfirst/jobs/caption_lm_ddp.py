"""Caption language model trained on two ranks with gradient accumulation."""

import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCAB, LENGTH, ACCUMULATE = 8000, 24, 4


class CaptionShard:
    """This rank's share of the tokenised captions."""

    def __init__(self, rank, captions=20_000):
        self.g = torch.Generator().manual_seed(100 + rank)
        weight = 1 / torch.arange(1, VOCAB + 1, dtype=torch.float)
        draws = torch.multinomial(weight, captions * (LENGTH + 1), replacement=True, generator=self.g)
        self.tokens = draws.view(captions, LENGTH + 1)

    def micro_batch(self, size):
        pick = torch.randint(0, len(self.tokens), (size,), generator=self.g)
        rows = self.tokens[pick]
        return rows[:, :-1], rows[:, 1:]


class CaptionLM(nn.Module):
    def __init__(self, dim=288, depth=4, heads=6):
        super().__init__()
        self.words = nn.Embedding(VOCAB, dim)
        self.positions = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)
        nn.init.normal_(self.words.weight, std=0.03)

    def forward(self, ids):
        x = self.words(ids) + self.positions
        x = self.layers(x, mask=self.causal, is_causal=True)
        return self.norm(x) @ self.words.weight.T


def micro_context(model, index, better):
    if better and index < ACCUMULATE - 1:
        return model.no_sync()
    return contextlib.nullcontext()


def optimizer_step(model, optimizer, shard, micro_size, better):
    """Accumulates ACCUMULATE micro-batches, then updates; returns the mean loss."""
    optimizer.zero_grad()
    total = 0.0
    for index in range(ACCUMULATE):
        ids, target = shard.micro_batch(micro_size)
        with micro_context(model, index, better):
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten()) / ACCUMULATE
            loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def time_is_up(start, seconds):
    """Rank 0's clock decides for both."""
    flag = torch.tensor([float(time.perf_counter() - start > seconds)])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--micro-size", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    shard = CaptionShard(rank)
    model = DistributedDataParallel(CaptionLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.05)

    times, step = [], 0
    dist.barrier()
    start = time.perf_counter()
    while not time_is_up(start, args.seconds):
        began = time.perf_counter()
        loss = optimizer_step(model, optimizer, shard, args.micro_size, args.better)
        step += 1
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)

    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
