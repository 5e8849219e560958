# Galaxy morphology: window attention with a continuous position bias (Swin-V2 style).
import argparse
import json
from time import perf_counter

import torch
from torch import nn
import torch.nn.functional as F


def log_spaced(offsets, window):
    rel = offsets / (window - 1) * 8
    return torch.sign(rel) * torch.log2(rel.abs() + 1.0) / 3.0


class PositionBias(nn.Module):
    def __init__(self, window, heads, hidden=448):
        super().__init__()
        self.window, self.heads = window, heads
        self.mlp = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, heads, bias=False))
        yx = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        rel = (yx[:, :, None] - yx[:, None, :]).permute(1, 2, 0)
        self.register_buffer("rel", log_spaced(rel.float(), window), persistent=False)

    def forward(self):
        bias = self.mlp(self.rel).permute(2, 0, 1)
        return 16 * torch.sigmoid(bias)


class TablePositionBias(PositionBias):
    def __init__(self, window, heads, hidden=448):
        super().__init__(window, heads, hidden)
        span = torch.arange(-(window - 1), window)
        table = torch.stack(torch.meshgrid(span, span, indexing="ij"), -1).reshape(-1, 2)
        self.register_buffer("table", log_spaced(table.float(), window), persistent=False)
        yx = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        d = yx[:, :, None] - yx[:, None, :] + window - 1
        self.register_buffer("index", d[0] * (2 * window - 1) + d[1], persistent=False)

    def forward(self):
        small = 16 * torch.sigmoid(self.mlp(self.table))
        n = self.window**2
        return small[self.index.view(-1)].view(n, n, self.heads).permute(2, 0, 1)


class Block(nn.Module):
    def __init__(self, dim, heads, window, bias_cls):
        super().__init__()
        self.heads, self.window = heads, window
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = bias_cls(window, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, h, w, c = x.shape
        k = self.window
        t = self.n1(x).view(b, h // k, k, w // k, k, c).transpose(2, 3).reshape(-1, k * k, c)
        q, key, v = self.qkv(t).view(t.shape[0], k * k, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, key, v, attn_mask=self.bias()[None])
        o = self.proj(o.transpose(1, 2).reshape(t.shape))
        o = o.view(b, h // k, w // k, k, k, c).transpose(2, 3).reshape(b, h, w, c)
        x = x + o
        return x + self.ff(self.n2(x))


class Morphology(nn.Module):
    def __init__(self, bias_cls, dim=64, window=8, depth=4, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.blocks = nn.Sequential(*[Block(dim, 4, window, bias_cls) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        x = self.blocks(self.stem(img).permute(0, 2, 3, 1))
        return self.head(x.mean((1, 2)))


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--seconds", type=float, default=10)
    cli.add_argument("--times", default=None)
    cli.add_argument("--better", action="store_true")
    opts = cli.parse_args()
    torch.manual_seed(3)
    model = Morphology(TablePositionBias if opts.better else PositionBias)
    optim = torch.optim.AdamW(model.parameters(), lr=3e-4)
    stamps = torch.randn(600, 3, 64, 64)
    kinds = torch.randint(0, 10, (600,))
    log, end = [], perf_counter() + opts.seconds
    while perf_counter() < end:
        start = perf_counter()
        pick = torch.randint(0, 600, (4,))
        loss = F.cross_entropy(model(stamps[pick]), kinds[pick], label_smoothing=0.1)
        optim.zero_grad()
        loss.backward()
        optim.step()
        log.append(perf_counter() - start)
    print("steps", len(log), "loss", float(loss))
    if opts.times:
        json.dump(log, open(opts.times, "w"))
