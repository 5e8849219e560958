"""News click ranking: article table spread over the ranks, dense tower replicated."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

REGISTRY = {}


def register(name):
    def deco(cls):
        REGISTRY[name] = cls
        return cls

    return deco


class Swap(torch.autograd.Function):
    """Variable-size exchange of rows; the gradient goes the opposite way."""

    @staticmethod
    def forward(ctx, rows, send, recv):
        ctx.send, ctx.recv = send, recv
        out = rows.new_empty(sum(recv), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), *grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


@register("article_table")
class ArticleTable(nn.Module):
    def __init__(self, articles, dim):
        super().__init__()
        self.world = dist.get_world_size()
        self.local = nn.Embedding(articles // self.world + 1, dim, sparse=True)
        nn.init.normal_(self.local.weight, std=0.05)

    def fetch(self, ids):
        owner = ids % self.world
        perm = owner.argsort(stable=True)
        send = torch.bincount(owner, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        asked = Swap.apply(ids[perm], send, recv)
        rows = Swap.apply(self.local(asked // self.world), recv, send)
        back = torch.empty_like(perm)
        back[perm] = torch.arange(len(perm))
        return rows[back]

    def forward(self, ids):
        flat = ids.flatten()
        if os.environ.get("CURED") == "1":
            keys, where = flat.unique(return_inverse=True)
            return F.embedding(where, self.fetch(keys)).view(*ids.shape, -1)
        return self.fetch(flat).view(*ids.shape, -1)


@register("reader_tower")
class ReaderTower(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, history, candidate):
        w = self.score(history).softmax(1)
        user = torch.bmm(w.transpose(1, 2), history).squeeze(1)
        return self.mlp(torch.cat([user, candidate.squeeze(1)], -1)).squeeze(-1)


class ClickLog:
    """Sessions whose articles follow a long-tailed popularity."""

    def __init__(self, articles, batch, history, seed):
        self.g = torch.Generator().manual_seed(seed)
        rank = torch.arange(1, articles + 1, dtype=torch.float)
        self.cdf = (rank**-1.25).cumsum(0)
        self.cdf /= self.cdf[-1].clone()
        self.shuffle = torch.randperm(articles, generator=torch.Generator().manual_seed(7))
        self.shape, self.last = (batch, history + 1), articles - 1

    def next(self):
        u = torch.rand(self.shape, generator=self.g)
        ids = self.shuffle[torch.searchsorted(self.cdf, u).clamp_(max=self.last)]
        return ids, (torch.rand(self.shape[0], generator=self.g) < 0.3).float()


def average_dense(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cfg = dict(articles=60000, dim=128, hidden=192, batch=640, history=60)
    torch.manual_seed(rank)
    table = REGISTRY["article_table"](cfg["articles"], cfg["dim"])
    torch.manual_seed(99)
    tower = REGISTRY["reader_tower"](cfg["dim"], cfg["hidden"])
    dense = list(tower.parameters())
    opts = [torch.optim.Adagrad(table.parameters(), lr=0.02), torch.optim.Adam(dense, lr=1e-3, fused=True)]
    log = ClickLog(cfg["articles"], cfg["batch"], cfg["history"], seed=40 + rank)
    laps = []
    for it in range(int(os.environ.get("STEPS", 150))):
        t = time.perf_counter()
        ids, clicked = log.next()
        rows = table(ids)
        loss = F.binary_cross_entropy_with_logits(tower(*rows.split([cfg["history"], 1], 1)), clicked)
        for o in opts:
            o.zero_grad()
        loss.backward()
        average_dense(dense)
        for o in opts:
            o.step()
        laps.append(time.perf_counter() - t)
        if rank == 0 and it % 50 == 0:
            print(f"iter {it} bce {loss.item():.4f}", flush=True)
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(f"{x:.6f}" for x in laps) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
