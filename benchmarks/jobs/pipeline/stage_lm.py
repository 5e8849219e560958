"""Decoder LM trained over a chain of stages with micro-batches."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CFG = {
    "vocab": 6000,
    "dim": 160,
    "heads": 4,
    "depth": 8,
    "context": 48,
    "micro": 5,
    "micro_rows": 4,
    "lr": 2e-4,
}
STAGE_DEPTHS = [6, 2] if "--better" in sys.argv else [4, 4]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Stage(nn.Module):
    def __init__(self, index, depths, cfg):
        super().__init__()
        self.first, self.last = index == 0, index == len(depths) - 1
        if self.first:
            torch.manual_seed(1)
            self.tok = nn.Embedding(cfg["vocab"], cfg["dim"])
            self.pos = nn.Embedding(cfg["context"], cfg["dim"])
        begin = sum(depths[:index])
        self.blocks = nn.ModuleList()
        for i in range(begin, begin + depths[index]):
            torch.manual_seed(100 + i)
            self.blocks.append(Block(cfg["dim"], cfg["heads"]))
        if self.last:
            torch.manual_seed(2)
            self.norm = nn.LayerNorm(cfg["dim"])
            self.head = nn.Linear(cfg["dim"], cfg["vocab"], bias=False)

    def forward(self, x, target=None):
        if self.first:
            x = self.tok(x) + self.pos.weight[: x.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        if not self.last:
            return x
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


class StageRunner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.stage = Stage(self.rank, STAGE_DEPTHS, cfg)
        self.opt = torch.optim.SGD(self.stage.parameters(), lr=cfg["lr"], momentum=0.9, fused=True)
        self.shape = (cfg["micro_rows"], cfg["context"], cfg["dim"])

    def head_of_chain(self, tokens):
        sent, outs = [], []
        for i, tok in enumerate(tokens):
            y = self.stage(tok[:, :-1])
            sent.append(dist.isend(y.detach(), self.rank + 1, tag=i))
            outs.append(y)
        for i, y in enumerate(outs):
            g = torch.empty(self.shape)
            dist.recv(g, self.rank + 1, tag=1000 + i)
            y.backward(g)
        for w in sent:
            w.wait()

    def tail_of_chain(self, tokens):
        inbox = [torch.empty(self.shape) for _ in tokens]
        pending = [dist.irecv(x, self.rank - 1, tag=i) for i, x in enumerate(inbox)]
        sent, total = [], 0.0
        for i, tok in enumerate(tokens):
            pending[i].wait()
            x = inbox[i].requires_grad_()
            loss = self.stage(x, tok[:, 1:]) / len(tokens)
            loss.backward()
            sent.append((dist.isend(x.grad, self.rank - 1, tag=1000 + i), x))
            total += loss.detach()
        for w, _ in sent:
            w.wait()
        return total

    def step(self, tokens):
        self.opt.zero_grad()
        loss = self.head_of_chain(tokens) if self.stage.first else self.tail_of_chain(tokens)
        self.opt.step()
        return loss


def corpus(cfg, seed=5):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(0, cfg["vocab"], (cfg["micro"], cfg["micro_rows"], cfg["context"] + 1), generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--seconds")  # it takes a number of steps
    args = ap.parse_args()
    dist.init_process_group("gloo")
    runner, stream, took = StageRunner(CFG), corpus(CFG), []
    for n in range(int(os.environ.get("STEPS", 120))):
        start = time.perf_counter()
        loss = runner.step(next(stream))
        took.append(time.perf_counter() - start)
        if n % 30 == 0 and runner.stage.last:
            print(f"[{n}] loss {float(loss):.4f}", flush=True)
    if runner.rank == 0 and args.times:
        open(args.times, "w").write("".join(f"{t:.6f}\n" for t in took))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
