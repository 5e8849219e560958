"""Electricity-meter anomaly detection: transformer that reconstructs hidden hours."""

import argparse
import json
import math
import os
import tempfile
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads, better):
        super().__init__()
        self.better = better
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        y = self.n1(x)
        if self.better:
            mixed, _ = self.attn(y, y, y, need_weights=False)
        else:
            mixed, _ = self.attn(y, y, y)
        x = x + mixed
        return x + self.mlp(self.n2(x))


class MeterNet(nn.Module):
    def __init__(self, better, channels=6, dim=64, heads=4, depth=3, hours=672):
        super().__init__()
        self.inp = nn.Linear(channels + 1, dim)
        self.register_buffer("pe", self.sinusoids(hours, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, better) for _ in range(depth))
        self.head = nn.Linear(dim, channels)

    @staticmethod
    def sinusoids(n, d):
        pos = torch.arange(n).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        table = torch.zeros(n, d)
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        return table

    def forward(self, x, hidden):
        z = torch.cat([x.masked_fill(hidden.unsqueeze(-1), 0.0), hidden.unsqueeze(-1).float()], -1)
        z = self.inp(z) + self.pe[: x.size(1)]
        for b in self.blocks:
            z = b(z)
        return self.head(z)


def make_meters(n=160, hours=336 * 8):
    t = torch.arange(hours).float()
    phase = torch.rand(n, 6, 1) * 6.28
    daily = torch.sin(2 * math.pi * t / 24 + phase)
    weekly = 0.5 * torch.sin(2 * math.pi * t / 168 + 2 * phase)
    return (daily + weekly + 0.2 * torch.randn(n, 6, hours)).transpose(1, 2).contiguous()


def windows(meters, batch, length=672):
    m = torch.randint(0, meters.size(0), (batch,)).tolist()
    s = torch.randint(0, meters.size(1) - length, (batch,)).tolist()
    return torch.stack([meters[i, j : j + length] for i, j in zip(m, s)])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(2024)
    meters = make_meters()
    net = MeterNet(args.better)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=20_000)
    workdir = tempfile.TemporaryDirectory()
    journal = open(os.path.join(workdir.name, "journal.jsonl"), "w")
    step, laps = 0, []
    stop = time.time() + args.seconds
    while time.time() < stop:
        t = time.perf_counter()
        x = windows(meters, 2)
        hidden = torch.rand(x.shape[:2]) < 0.2
        rec = net(x, hidden)
        err = (rec - x).abs().mean(-1)
        loss = err[hidden].mean()
        opt.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        journal.write(
            json.dumps({"step": step, "loss": loss.item(), "gn": grad_norm.item(), "lr": sched.get_last_lr()[0]}) + "\n"
        )
        journal.flush()
        if step % 100 == 99:
            torch.save(net.state_dict(), os.path.join(workdir.name, "last.pt"))
            print(f"step {step + 1}: masked error {loss.item():.4f}", flush=True)
        step += 1
        laps.append(time.perf_counter() - t)
    journal.close()
    workdir.cleanup()
    if args.times:
        with open(args.times, "w") as f:
            f.write("".join(f"{v}\n" for v in laps))


if __name__ == "__main__":
    main()
