"""Road segmentation with a small ConvNeXt-like encoder and a plain decoder (made tiles)."""

import argparse
import json
from time import perf_counter

import torch
import torch.nn as nn
import torch.nn.functional as F


class ChannelNorm(nn.Module):
    """LayerNorm over channels."""

    def __init__(self, c, better):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))
        self.c, self.last = c, better

    def forward(self, x):
        if self.last:  # blocks work on B,H,W,C
            return F.layer_norm(x, (self.c,), self.weight, self.bias)
        x = x.permute(0, 2, 3, 1).contiguous()
        x = F.layer_norm(x, (self.c,), self.weight, self.bias)
        return x.permute(0, 3, 1, 2).contiguous()


class Dense(nn.Linear):
    def __init__(self, cin, cout, last):
        super().__init__(cin, cout)
        self.last = last

    def forward(self, x):
        if self.last:
            return super().forward(x)
        x = super().forward(x.permute(0, 2, 3, 1).contiguous())
        return x.permute(0, 3, 1, 2).contiguous()


class Block(nn.Module):
    def __init__(self, c, last, depth=3):
        super().__init__()
        self.norms = nn.ModuleList(ChannelNorm(c, last) for _ in range(depth))
        self.ins = nn.ModuleList(Dense(c, c, last) for _ in range(depth))
        self.outs = nn.ModuleList(Dense(c, c, last) for _ in range(depth))

    def forward(self, x):
        for n, a, b in zip(self.norms, self.ins, self.outs):
            x = x + b(F.relu(a(n(x))))
        return x


class Net(nn.Module):
    def __init__(self, c=32, classes=4, last=False):
        super().__init__()
        self.last = last
        self.stem = nn.Conv2d(3, c, 4, 4)
        self.body = nn.Sequential(Block(c, last), Block(c, last))
        self.head = Dense(c, classes, last)

    def forward(self, x):
        y = self.stem(x)
        if self.last:
            y = y.permute(0, 2, 3, 1).contiguous()
        y = self.head(self.body(y))
        if self.last:
            y = y.permute(0, 3, 1, 2)
        return F.interpolate(y, scale_factor=2)


def get_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


if __name__ == "__main__":
    args = get_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tiles = torch.rand(24, 3, 256, 256)
    masks = torch.randint(0, 4, (24, 128, 128))
    net = Net(last=args.better)
    optim = torch.optim.AdamW(net.parameters(), lr=args.lr)
    t = [perf_counter()]
    step = 0
    while t[-1] < t[0] + args.seconds or step < 24:
        idx = torch.randint(0, len(tiles), (4,))
        loss = F.cross_entropy(net(tiles[idx]), masks[idx])
        optim.zero_grad()
        loss.backward()
        optim.step()
        if step % 25 == 0:
            print("step", step, "loss", round(loss.item(), 4))
        step += 1
        t.append(perf_counter())
    if args.times:
        with open(args.times, "w") as fh:
            json.dump([y - x for x, y in zip(t, t[1:])], fh)
