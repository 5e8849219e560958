"""Two-rank seq2seq training with gradient accumulation (torchrun, gloo)."""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Seq2Seq(nn.Module):
    def __init__(self, vocab=6000, dim=256):
        super().__init__()
        self.src = nn.Embedding(vocab, dim)
        self.tgt = nn.Embedding(vocab, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.query = nn.Linear(dim, dim)
        self.join = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, s, t):
        mem, h = self.encoder(self.src(s))
        y, _ = self.decoder(self.tgt(t), h)
        att = F.scaled_dot_product_attention(self.query(y), mem, mem)
        return self.out(torch.tanh(self.join(torch.cat([y, att], -1))))


def sentence_pairs(rank, batch=4, length=10, vocab=6000):
    g = torch.Generator().manual_seed(100 + rank)
    while True:
        s = (torch.rand(batch, length, generator=g) ** 2 * (vocab - 2)).long() + 1
        yield s, (s.flip(1) * 7 + 3) % vocab


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--accumulate", type=int, default=4)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Seq2Seq())
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=100)
    data = sentence_pairs(rank)
    took, step = [], 0
    begin = time.perf_counter()
    go_on = torch.ones(1)
    while True:
        t0 = time.perf_counter()
        opt.zero_grad()
        shown = 0.0
        for micro in range(a.accumulate):
            s, t = next(data)
            last = micro == a.accumulate - 1
            skip = a.better and not last
            with model.no_sync() if skip else contextlib.nullcontext():
                logits = model(s, t[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), t[:, 1:].flatten()) / a.accumulate
                loss.backward()
            shown += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {shown:.4f} lr {sched.get_last_lr()[0]:.3f}", flush=True)
        go_on.fill_(float(time.perf_counter() - begin < a.seconds))
        dist.broadcast(go_on, 0)
        took.append(time.perf_counter() - t0)
        if not go_on.item():
            break
    if rank == 0 and a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(map(str, took)) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    assert "RANK" in os.environ, "start with torchrun --nproc-per-node 2"
    main()
