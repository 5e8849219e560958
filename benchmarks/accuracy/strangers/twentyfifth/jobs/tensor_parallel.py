"""Megatron-style MLP and attention, sharded over ranks by hand."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from stopwatch import report

D, HEADS, HIDDEN, LAYERS = 384, 8, 1500, 4


class ToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class FromShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Layer(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.heads = HEADS // world
        inner = D // world
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v = nn.Linear(D, inner), nn.Linear(D, inner), nn.Linear(D, inner)
        self.o = nn.Linear(inner, D, bias=False)
        self.up, self.down = nn.Linear(D, HIDDEN // world), nn.Linear(HIDDEN // world, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        h = ToShards.apply(self.n1(x))
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + FromShards.apply(self.o(a))
        h = ToShards.apply(self.n2(x))
        return x + FromShards.apply(self.down(F.gelu(self.up(h))))


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(1)
    net = nn.Sequential(*[Layer(world) for _ in range(LAYERS)])
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(2)  # the same batch on all shards
    times = []
    for _ in range(48):
        t0 = time.perf_counter()
        x = torch.randn(2, 211, D)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
    report(times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
