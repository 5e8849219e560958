"""Top-1 mixture of experts, the experts spread over the ranks; tokens travel by all_to_all."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

from stopwatch import report

D, HIDDEN, PER_RANK, TOKENS, LAYERS = 198, 790, 3, 730, 2


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.sent, ctx.received = sent, received
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.sent), g.shape[1])
        dist.all_to_all_single(out, g.contiguous(), ctx.sent, ctx.received)
        return out, None, None


class Experts(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.world = world
        self.n = world * PER_RANK
        self.router = nn.Linear(D, self.n)
        # selection bias, as it came out of the pre-training run
        popular = torch.tensor([1.9, 1.2, 1.5] + [-0.3] * (self.n - PER_RANK))
        even = torch.zeros(self.n)
        self.register_buffer("selection", even if os.environ.get("CURED") == "1" else popular)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, D)) for _ in range(PER_RANK)
        )

    def forward(self, x):
        logits = self.router(x)
        gate = logits.softmax(-1)
        pick = (logits.detach() + self.selection).argmax(-1)
        order = pick.argsort()
        counts = torch.bincount(pick, minlength=self.n)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent = counts.view(self.world, PER_RANK).sum(1).tolist()
        received = theirs.view(self.world, PER_RANK).sum(1).tolist()
        arrived = Exchange.apply(x[order], sent, received)
        pieces = arrived.split(theirs.tolist())
        done = []
        for k, piece in enumerate(pieces):
            done.append(self.experts[k % PER_RANK](piece))
        back = Exchange.apply(torch.cat(done), received, sent)
        out = torch.zeros_like(x).index_copy(0, order, back)
        return x + out * gate.gather(1, pick[:, None])


class Net(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.moe = nn.ModuleList(Experts(world) for _ in range(LAYERS))
        self.dense = nn.ModuleList(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x):
        for d, m in zip(self.dense, self.moe):
            x = m(d(x) + x)
        return x


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    net = Net(world)
    shared = [p for n, p in net.named_parameters() if ".experts." not in n]
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(50 + rank)
    times = []
    for _ in range(58):
        begin = time.perf_counter()
        x = torch.randn(TOKENS, D)
        y = net(x)
        loss = (y - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in shared])
        dist.all_reduce(flat)
        flat /= world
        at = 0
        for p in shared:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    report(times)
    dist.destroy_process_group()


main()
