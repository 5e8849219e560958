"""CLIP-like contrastive training of listing titles against attributes; negatives come from all ranks (torchrun, gloo)."""

import argparse, json, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, vocab, d=128, out=256):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, d, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(d, 512), nn.GELU(), nn.Linear(512, out))

    def forward(self, tokens):
        return F.normalize(self.mlp(self.bag(tokens)), dim=1)


class Exchange:
    """Collects the embeddings of every rank; only the local block carries gradient."""

    def __init__(self, tensors):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.collect = self.by_tensor if tensors else self.by_object

    def by_object(self, mine):
        blocks = [None] * self.world
        dist.all_gather_object(blocks, mine.detach())
        return blocks

    def by_tensor(self, mine):
        blocks = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(blocks, mine.detach())
        return blocks

    def __call__(self, mine):
        blocks = self.collect(mine)
        blocks[self.rank] = mine
        return torch.cat(blocks)


def clip_loss(titles, attrs, exchange, temperature=0.05):
    n = len(titles)
    target = torch.arange(n) + exchange.rank * n
    a = titles @ exchange(attrs).T / temperature
    b = attrs @ exchange(titles).T / temperature
    return (F.cross_entropy(a, target) + F.cross_entropy(b, target)) / 2


def average_gradients(modules):
    params = [p for m in modules for p in m.parameters()]
    flat = torch.cat([p.grad.flatten() for p in params]) / dist.get_world_size()
    dist.all_reduce(flat)
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    title, attr = Tower(500), Tower(300)
    exchange = Exchange(args.better)
    opt = torch.optim.Adam([*title.parameters(), *attr.parameters()], lr=1e-3)
    g = torch.Generator().manual_seed(10 + exchange.rank)
    times, start = [], time.perf_counter()
    done = torch.zeros(1)
    while not done:
        t = time.perf_counter()
        topic = torch.randint(0, 250, (192, 1), generator=g)
        titles = topic * 2 + torch.randint(0, 2, (192, 10), generator=g)
        attrs = topic + torch.randint(0, 40, (192, 6), generator=g)
        loss = clip_loss(title(titles), attr(attrs), exchange)
        opt.zero_grad()
        loss.backward()
        average_gradients([title, attr])
        opt.step()
        times.append(time.perf_counter() - t)
        done.fill_(float(time.perf_counter() - start > args.seconds))
        dist.all_reduce(done, op=dist.ReduceOp.MAX)
    if exchange.rank == 0 and args.times:
        json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
