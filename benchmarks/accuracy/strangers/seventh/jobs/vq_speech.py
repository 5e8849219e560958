"""VQ autoencoder over speech feature frames (commitment loss + EMA codebook)."""

import argparse
import json
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

cfg = SimpleNamespace(mels=64, hidden=160, dim=48, codes=384, frames=128, batch=12, decay=0.99, lr=3e-4)


class Codebook(nn.Module):
    def __init__(self, codes, dim, decay, better):
        super().__init__()
        self.decay, self.better = decay, better
        self.register_buffer("embed", torch.randn(codes, dim))
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", self.embed.clone())

    def nearest(self, flat):
        if self.better:
            return (self.embed.square().sum(1) - 2 * flat @ self.embed.t()).argmin(1)
        dist = (flat.unsqueeze(1) - self.embed.unsqueeze(0)).pow(2).sum(-1)
        return dist.argmin(1)

    @torch.no_grad()
    def update(self, flat, idx):
        n = torch.bincount(idx, minlength=len(self.embed)).to(flat.dtype)
        s = torch.zeros_like(self.embed).index_add_(0, idx, flat)
        self.count.lerp_(n, 1 - self.decay)
        self.total.lerp_(s, 1 - self.decay)
        self.embed.copy_(self.total / self.count.clamp_min(1e-3).unsqueeze(1))

    def forward(self, z):
        flat = z.detach().reshape(-1, z.size(-1))
        idx = self.nearest(flat)
        q = self.embed[idx].view_as(z)
        if self.training:
            self.update(flat, idx)
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit, idx


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(nn.GELU(), nn.Conv1d(c, c, 3, padding=1), nn.GELU(), nn.Conv1d(c, c, 1))

    def forward(self, x):
        return x + self.net(x)


class SpeechVQ(nn.Module):
    def __init__(self, c, better):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(c.mels, c.hidden, 4, stride=2, padding=1),
            Res(c.hidden),
            Res(c.hidden),
            nn.Conv1d(c.hidden, c.dim, 1),
        )
        self.book = Codebook(c.codes, c.dim, c.decay, better)
        self.dec = nn.Sequential(
            nn.Conv1d(c.dim, c.hidden, 1),
            Res(c.hidden),
            Res(c.hidden),
            nn.ConvTranspose1d(c.hidden, c.mels, 4, stride=2, padding=1),
        )

    def forward(self, x):
        z = self.enc(x).transpose(1, 2)
        q, commit, idx = self.book(z)
        return self.dec(q.transpose(1, 2)), commit, idx


def corpus(n=400):
    g = torch.Generator().manual_seed(5)
    base = torch.randn(n, cfg.mels, cfg.frames, generator=g)
    return F.avg_pool1d(base, 5, stride=1, padding=2) * 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    data = corpus()
    model = SpeechVQ(cfg, args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    times, begin = [], time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        x = data[torch.randint(0, len(data), (cfg.batch,))]
        rec, commit, idx = model(x)
        loss = F.l1_loss(rec, x) + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        if len(times) % 40 == 0:
            used = idx.unique().numel()
            print(f"step {len(times)} loss {loss.item():.4f} codes used {used}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
