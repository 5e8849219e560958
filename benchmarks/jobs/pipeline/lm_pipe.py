"""Two-stage pipelined language model with hand-written activations exchange."""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CURED = "--better" in sys.argv
STEPS = int(os.environ.get("STEPS", 120))
VOCAB, DIM, LAYERS, SEQ, MICRO_BATCH, MICROS = 2000, 192, 4, 64, 3, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 6, d // 6).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class Head(nn.Module):
    """First stage: embeddings and the lower blocks."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        # one block more than the other stage, which has the vocabulary projection
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS // 2 + 1)])

    def forward(self, ids):
        return self.blocks(self.tok(ids) + self.pos.weight)


class Tail(nn.Module):
    """Second stage: the upper blocks and the loss."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS // 2)])
        self.ln, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, h, target):
        logits = self.out(self.ln(self.blocks(h)))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten()) / MICROS


def corpus():
    g = torch.Generator().manual_seed(3)
    text = torch.randint(0, VOCAB, (400_000,), generator=g)
    while True:
        at = torch.randint(0, len(text) - SEQ - 1, (MICROS, MICRO_BATCH), generator=g)
        win = text[at[..., None] + torch.arange(SEQ + 1)]
        yield win[..., :-1], win[..., 1:]


class First:
    def __init__(self):
        self.net = Head()
        self.held = {}
        self.pending = []

    def up(self, m, ids):
        h = self.net(ids)
        self.held[m] = h
        out = h.detach()
        self.pending.append((dist.isend(out, dst=1, tag=m), out))

    def down(self, m):
        h = self.held.pop(m)
        g = torch.empty_like(h)
        dist.recv(g, src=1, tag=100 + m)
        h.backward(g)

    def schedule(self, x, _):
        depth = 2 if CURED else 1
        for m in range(MICROS):
            self.up(m, x[m])
            if m >= depth - 1:
                self.down(m - depth + 1)
        for m in range(MICROS - depth + 1, MICROS):
            self.down(m)
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()
        return None


class Second:
    def __init__(self):
        self.net = Tail()
        self.pending = []

    def schedule(self, _, y):
        total = 0.0
        for m in range(MICROS):
            h = torch.empty(MICRO_BATCH, SEQ, DIM)
            dist.recv(h, src=0, tag=m)
            h.requires_grad_()
            loss = self.net(h, y[m])
            loss.backward()
            self.pending.append((dist.isend(h.grad, dst=0, tag=100 + m), h))
            total += loss.detach()
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()
        return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--seconds")  # it takes a number of steps
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = First() if rank == 0 else Second()
    opt = torch.optim.SGD(stage.net.parameters(), lr=0.05, momentum=0.9, foreach=False)
    data = corpus()
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        x, y = next(data)
        loss = stage.schedule(x, y)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if rank == 1 and step % 30 == 0:
            print(f"step {step} loss {float(loss):.3f}", flush=True)
        times.append(time.perf_counter() - t0)
    if args.times and rank == 0:
        json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
