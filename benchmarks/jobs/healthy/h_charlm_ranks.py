"""Character LM on two ranks: DDP over gloo, two micro-batches a step, loss averaged over ranks for the log."""

import argparse
import json
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, HEADS, LAYERS, SEQ, MICRO, ACCUM = 128, 128, 4, 2, 128, 2, 2

torch.manual_seed(51)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(SEQ, DIM)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, target):
        h = self.blocks(self.tok(ids) + self.pos.weight)
        return F.cross_entropy(self.out(self.norm(h)).flatten(0, 1), target.flatten())


def synth_text(n):
    """A second-order chain over the alphabet."""
    g = torch.Generator().manual_seed(52)
    jump = torch.randint(0, VOCAB, (n,), generator=g)
    coin = torch.rand(n, generator=g) < 0.15
    text = (torch.arange(n) * 5 + torch.arange(n) // 7) % VOCAB
    return torch.where(coin, jump, text)


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over on a rank, asked now and then; how long each took is written then."""
    times = []
    going = torch.ones(1)
    begin = last = time.perf_counter()
    while going.item():
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 10 == 0:
            going.fill_(float(now - begin < opt.seconds))
            dist.all_reduce(going, op=dist.ReduceOp.MIN)
    if opt.times and dist.get_rank() == 0:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    text = synth_text(400_000)
    model = DDP(CharLM())
    optim = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    gen = torch.Generator().manual_seed(53 + rank)
    span = torch.arange(SEQ + 1)
    dist.barrier()
    for step in steps_of(opt):
        optim.zero_grad(set_to_none=True)
        total = torch.zeros(1)
        for micro in range(ACCUM):
            at = torch.randint(0, len(text) - SEQ - 1, (MICRO, 1), generator=gen)
            chunk = text[at + span]
            last = micro == ACCUM - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(chunk[:, :-1], chunk[:, 1:]) / ACCUM
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        dist.all_reduce(total)
        if total.item() / world > 50:
            raise RuntimeError("diverged")
        if (step + 1) % 100 == 0:
            dist.barrier()
            if rank == 0:
                print(f"step {step + 1} loss {total.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
