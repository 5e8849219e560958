"""VQ-VAE for motion-capture windows: discrete codes for 16-frame clips."""

import argparse
import time
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class VQOut(NamedTuple):
    quantised: torch.Tensor
    codes: torch.Tensor
    commit: torch.Tensor


class Quantiser(nn.Module):
    """EMA codebook."""

    def __init__(self, n_codes, dim, better, decay=0.99):
        super().__init__()
        self.better, self.decay = better, decay
        self.register_buffer("book", torch.randn(n_codes, dim))
        self.register_buffer("count", torch.ones(n_codes))
        self.register_buffer("total", self.book.clone())

    def nearest(self, z):
        if self.better:
            d = self.book.pow(2).sum(1) - 2 * z @ self.book.t()
        else:
            d = (z.unsqueeze(1) - self.book.unsqueeze(0)).pow(2).sum(-1)
        return d.argmin(1)

    @torch.no_grad()
    def update(self, z, codes):
        n = torch.zeros_like(self.count).index_add_(0, codes, torch.ones(len(codes)))
        s = torch.zeros_like(self.total).index_add_(0, codes, z)
        self.count.mul_(self.decay).add_(n, alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(s, alpha=1 - self.decay)
        self.book.copy_(self.total / self.count.clamp(min=1e-3).unsqueeze(1))

    def forward(self, z):
        with torch.no_grad():
            codes = self.nearest(z)
        q = self.book[codes]
        commit = F.mse_loss(z, q)
        if self.training:
            self.update(z.detach(), codes)
        return VQOut(z + (q - z).detach(), codes, commit)


class MotionVAE(nn.Module):
    def __init__(self, better, joints=66, dim=32, width=256):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(joints, width, 5, 2, 2),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv1d(width, dim, 1),
        )
        self.vq = Quantiser(512, dim, better)
        self.dec = nn.Sequential(
            nn.ConvTranspose1d(dim, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose1d(width, width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv1d(width, joints, 3, 1, 1),
        )

    def forward(self, x):
        h = self.enc(x)
        b, d, t = h.shape
        out = self.vq(h.transpose(1, 2).reshape(b * t, d))
        rec = self.dec(out.quantised.view(b, t, d).transpose(1, 2))
        return rec, out


def walking(n, frames=16, joints=66):
    t = torch.arange(frames) / 8.0
    speed = torch.rand(n, 1, 1) * 2 + 0.5
    phase = torch.rand(n, joints, 1) * 0.5 + torch.linspace(0, 6, joints)[None, :, None]
    return torch.sin(speed * t + phase) * torch.linspace(0.2, 1, joints)[None, :, None]


def perplexity(codes, n=512):
    p = torch.bincount(codes, minlength=n).float() / len(codes)
    return torch.exp(-(p * (p + 1e-9).log()).sum()).item()


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()
torch.manual_seed(13)
clips = walking(4096)
vae = MotionVAE(args.better)
opt = torch.optim.Adam(vae.parameters(), lr=3e-4)
durations = []
end = time.perf_counter() + args.seconds
for step in range(10**9):
    tick = time.perf_counter()
    if tick > end:
        break
    x = clips[torch.randint(0, len(clips), (96,))]
    x = x + 0.01 * torch.randn_like(x)
    rec, vq = vae(x)
    loss = F.smooth_l1_loss(rec, x) + 0.25 * vq.commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(
            f"{step} rec {loss.item():.4f} commit {vq.commit.item():.4f} perplexity {perplexity(vq.codes):.1f}",
            flush=True,
        )
    durations.append(time.perf_counter() - tick)
if args.times:
    with open(args.times, "w") as f:
        f.write("".join(f"{d}\n" for d in durations))
