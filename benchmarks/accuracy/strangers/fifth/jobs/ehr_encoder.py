"""Readmission model: transformer over the coded events of a hospital stay."""

from __future__ import annotations
import argparse
import json
import time
from dataclasses import dataclass

import torch
from torch import nn, Tensor


@dataclass
class Config:
    codes: int = 3000
    dim: int = 128
    heads: int = 8
    layers: int = 2
    events: int = 448
    batch: int = 3
    lr: float = 3e-4
    plain: bool = False


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.norm1 = nn.LayerNorm(c.dim)
        self.attn = nn.MultiheadAttention(c.dim, c.heads, batch_first=True)
        self.norm2 = nn.LayerNorm(c.dim)
        self.ff = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))
        self.opts = {"need_weights": False} if c.plain else {}

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        a, _ = self.attn(h, h, h, **self.opts)
        x = x + a
        return x + self.ff(self.norm2(x))


class StayEncoder(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.code = nn.Embedding(c.codes, c.dim)
        self.gap = nn.Linear(1, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        self.risk = nn.Linear(c.dim, 1)

    def forward(self, codes: Tensor, hours: Tensor) -> Tensor:
        x = self.code(codes) + self.gap(torch.log1p(hours).unsqueeze(-1))
        for b in self.blocks:
            x = b(x)
        return self.risk(self.norm(x).mean(1)).squeeze(-1)


class Ward:
    """Synthetic stays, kept in memory as integer tensors."""

    def __init__(self, c: Config, n: int = 600):
        g = torch.Generator().manual_seed(8)
        self.codes = torch.randint(0, c.codes, (n, c.events), generator=g)
        self.hours = torch.rand(n, c.events, generator=g) * 48
        self.label = torch.randint(0, 2, (n,), generator=g).float()
        self.batch = c.batch

    def __iter__(self):
        for idx in torch.randperm(len(self.label)).split(self.batch):
            yield self.codes[idx], self.hours[idx], self.label[idx]


class Experiment:
    def __init__(self, c: Config):
        self.data = Ward(c)
        self.model = StayEncoder(c)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=c.lr, fused=True)
        self.loss = nn.BCEWithLogitsLoss()
        self.times: list[float] = []

    def train(self, seconds: float) -> None:
        self.model.train()
        begin = last = time.perf_counter()
        while True:
            for codes, hours, label in self.data:
                loss = self.loss(self.model(codes, hours), label)
                self.optim.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optim.step()
                now = time.perf_counter()
                self.times.append(now - last)
                last = now
                if len(self.times) % 20 == 0:
                    print(f"[{len(self.times)}] bce={loss.item():.4f}")
                if now - begin > seconds:
                    return


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12.0)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", default=None)
    args = p.parse_args()
    torch.manual_seed(1)
    exp = Experiment(Config(plain=args.better))
    exp.train(args.seconds)
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(exp.times, fh)


if __name__ == "__main__":
    main()
