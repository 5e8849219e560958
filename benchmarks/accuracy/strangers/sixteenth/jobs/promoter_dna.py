"""Promoter prediction on long DNA windows with kernelised attention (elu + 1 features)."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


def one_hot(seq):
    return F.one_hot(seq, 4).float()


class KernelAttention(nn.Module):
    def __init__(self, d, heads, mix):
        super().__init__()
        self.heads, self.mix = heads, mix
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).unbind(2)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        norm = torch.einsum("bnhd,bhd->bnh", q, k.sum(1)) + 1e-6
        y = self.mix(q, k, v) / norm[..., None]
        return self.out(y.reshape(b, n, d))


def mix_a(q, k, v):
    return torch.einsum("bnhm,bmhe->bnhe", torch.einsum("bnhd,bmhd->bnhm", q, k), v)


def mix_b(q, k, v):
    return torch.einsum("bnhd,bhde->bnhe", q, torch.einsum("bmhd,bmhe->bhde", k, v))


class Block(nn.Module):
    def __init__(self, d, heads, mix):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = KernelAttention(d, heads, mix)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.ff(self.n2(x))


class PromoterNet(nn.Module):
    def __init__(self, mix, d=128, heads=4, depth=3):
        super().__init__()
        self.stem = nn.Conv1d(4, d, 9, stride=4, padding=4)
        self.blocks = nn.Sequential(*[Block(d, heads, mix) for _ in range(depth)])
        self.head = nn.Linear(d, 1)

    def forward(self, seq):
        h = self.stem(one_hot(seq).transpose(1, 2)).transpose(1, 2)
        return self.head(self.blocks(h).mean(1)).squeeze(-1)


def genome_windows(n, length, g):
    seq = torch.randint(4, (n, length), generator=g)
    label = torch.rand(n, generator=g) < 0.5
    tata = torch.tensor([3, 0, 3, 0, 0, 0])
    at = length // 3
    seq[label, at : at + 6] = tata
    return seq, label.float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--window", type=int, default=2048)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(4)
    g = torch.Generator().manual_seed(4)
    net = PromoterNet(mix_b if args.better else mix_a)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        seq, label = genome_windows(4, args.window, g)
        loss = F.binary_cross_entropy_with_logits(net(seq), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
