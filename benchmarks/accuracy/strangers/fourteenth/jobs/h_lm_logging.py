"""Decoder LM with tied embeddings and a per-step log of loss, learning rate and peak memory."""

import argparse
import json
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F

BUDGET_MB = 4096


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, vocab=2000, d=128, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(128, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        x = self.emb(ids) + self.pos.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.emb.weight)


def text_stream(gen):
    walk = torch.randint(0, 2000, (300_000,), generator=gen)
    while True:
        start = torch.randint(0, len(walk) - 130, (8,), generator=gen)
        chunk = torch.stack([walk[s : s + 129] for s in start.tolist()])
        yield chunk[:, :-1], chunk[:, 1:]


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true", help="ignored")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    model = LM()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=100_000)
    times, log = [], []
    t0 = time.perf_counter()
    for ids, target in text_stream(torch.Generator().manual_seed(1)):
        tic = time.perf_counter()
        loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        log.append({"loss": loss.item(), "lr": sched.get_last_lr()[0], "peak": peak_mb()})
        assert log[-1]["peak"] < BUDGET_MB, "over the memory budget"
        times.append(time.perf_counter() - tic)
        if time.perf_counter() - t0 > args.seconds:
            break
    print(json.dumps(log[-1]))
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)
