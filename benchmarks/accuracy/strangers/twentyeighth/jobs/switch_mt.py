"""Mixture-of-experts text model: experts live on different ranks, tokens travel to them."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

conf = {
    "vocab": 2000,
    "dim": 160,
    "hidden": 640,
    "experts": 8,
    "layers": 3,
    "heads": 4,
    "rows": 12,
    "length": 64,
    "balance": 0.2,
    "lr": 4e-4,
    "eval_every": 50,
}


class Ship(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = out_splits, in_splits
        y = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), out_splits, in_splits)
        return y

    @staticmethod
    def backward(ctx, g):
        o, i = ctx.splits
        y = g.new_empty(sum(i), g.shape[1])
        dist.all_to_all_single(y, g.contiguous(), i, o)
        return y, None, None


class Experts(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.world, self.n = dist.get_world_size(), c["experts"]
        self.local = self.n // self.world
        self.gate = nn.Linear(c["dim"], self.n, bias=False)
        torch.manual_seed(1000 * layer + dist.get_rank())
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(c["dim"], c["hidden"]), nn.GELU(), nn.Linear(c["hidden"], c["dim"]))
            for _ in range(self.local)
        )
        torch.manual_seed(layer + 5)

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        top, pick = probs.max(-1)
        share = F.one_hot(pick, self.n).float().mean(0)
        self.aux = self.n * (share * probs.mean(0)).sum()
        order = pick.argsort(stable=True)
        want = torch.bincount(pick, minlength=self.n)
        have = torch.empty_like(want)
        dist.all_to_all_single(have, want)
        have = have.view(self.world, self.local)
        ins, outs = want.view(self.world, -1).sum(1).tolist(), have.sum(1).tolist()
        got = Ship.apply(x[order], outs, ins)
        which = torch.arange(self.local).repeat(self.world).repeat_interleave(have.flatten())
        place = which.argsort(stable=True)
        groups = got[place].split(have.sum(0).tolist())
        done = torch.cat([m(g) for m, g in zip(self.mlps, groups)])
        back = Ship.apply(done[place.argsort()], ins, outs)
        return back[order.argsort()] * top[:, None]


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c["dim"]), nn.LayerNorm(c["dim"])
        self.attn = nn.MultiheadAttention(c["dim"], c["heads"], batch_first=True)
        self.ff = Experts(c, i)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.n2(x).flatten(0, 1)).view_as(x)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c["vocab"], c["dim"])
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["layers"]))
        self.out = nn.Linear(c["dim"], c["vocab"])

    def forward(self, ids, target):
        x = self.tok(ids)
        for l in self.layers:
            x = l(x)
        aux = sum(l.ff.aux for l in self.layers)
        return F.cross_entropy(self.out(x).flatten(0, 1), target.flatten()), aux


def batch(g):
    ids = torch.randint(0, conf["vocab"], (conf["rows"], conf["length"]), generator=g)
    return ids, (ids * 3 + 1) % conf["vocab"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Model(conf)
    own = {id(p) for l in net.layers for p in l.ff.mlps.parameters()}
    common = [p for p in net.parameters() if id(p) not in own]
    for p in common:
        dist.broadcast(p.data, 0)
    opt = torch.optim.AdamW(net.parameters(), lr=conf["lr"], fused=True)
    g, held = torch.Generator().manual_seed(70 + rank), torch.Generator().manual_seed(170 + rank)
    clock = []
    for step in range(int(os.environ.get("STEPS", 120))):
        t0 = time.perf_counter()
        loss, aux = net(*batch(g))
        opt.zero_grad()
        ((loss + conf["balance"] * aux) / world).backward()
        flat = torch.cat([p.grad.flatten() for p in common])
        dist.all_reduce(flat)
        for p, f in zip(common, flat.split([p.numel() for p in common])):
            p.grad.copy_(f.view_as(p))
        opt.step()
        if (step + 1) % conf["eval_every"] == 0:
            with torch.no_grad():
                score = net(*batch(held))[0]
            dist.all_reduce(score)
            if rank == 0:
                print(f"step {step + 1} train {loss.item():.3f} eval {score.item() / world:.3f}", flush=True)
        clock.append(time.perf_counter() - t0)
    if rank == 0 and args.times:
        open(args.times, "w").write("".join(f"{c:.6f}\n" for c in clock))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
