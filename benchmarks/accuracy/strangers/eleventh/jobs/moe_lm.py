"""Pretrain a small mixture-of-experts language model on a synthetic token stream."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS, FFN = 2048, 256, 4, 2, 512
EXPERTS, TOP_K = 8, 2
BATCH, SEQ = 4, 112


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=16)
    p.add_argument("--lr", type=float, default=6e-4)
    return p.parse_args()


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, FFN, bias=False)
        self.down = nn.Linear(FFN, DIM, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class MoE(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.better = better

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, DIM)
        probs = self.router(x).softmax(-1)
        weight, index = probs.topk(TOP_K, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        gates = torch.zeros_like(probs).scatter(1, index, weight)
        # load-balancing term as in Switch Transformer
        load = (gates > 0).float().mean(0)
        aux = EXPERTS * (load * probs.mean(0)).sum()
        if self.better:
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                rows = gates[:, i].nonzero().squeeze(1)
                out = out.index_add(0, rows, expert(x[rows]) * gates[rows, i, None])
        else:
            outs = torch.stack([expert(x) for expert in self.experts], dim=1)
            out = (outs * gates.unsqueeze(-1)).sum(dim=1)
        return out.view(shape), aux


class Block(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.moe = MoE(better)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        y, aux = self.moe(self.norm2(x))
        return x + y, aux


class MoELM(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(SEQ, DIM))
        self.blocks = nn.ModuleList(Block(better) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.tok.weight.data.normal_(std=0.02)

    def forward(self, ids, targets):
        x, total = self.tok(ids) + self.pos, 0.0
        for block in self.blocks:
            x, aux = block(x)
            total = total + aux
        logits = F.linear(self.norm(x), self.tok.weight)
        ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return ce, total / LAYERS


def main():
    args = parse_args()
    torch.manual_seed(1234)
    stream = torch.randint(0, VOCAB, (400_000,))
    model = MoELM(args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=True)
    offsets = torch.arange(SEQ + 1)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        starts = torch.randint(0, len(stream) - SEQ - 1, (BATCH, 1))
        chunk = stream[starts + offsets]
        ce, aux = model(chunk[:, :-1], chunk[:, 1:])
        opt.zero_grad()
        (ce + 0.01 * aux).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"iter {len(times):5d}  ce {ce.item():.3f}  aux {aux.item():.3f}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
