"""Deep denoiser for seismic traces; activations of the trunk are recomputed to fit long traces."""

import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

SAMPLES, BATCH = 1024, 8


class DilatedBlock(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(8, ch)
        self.c1 = nn.Conv1d(ch, ch, 3, padding=dilation, dilation=dilation)
        self.c2 = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        return x + self.c2(F.silu(self.c1(self.norm(x))))


class Denoiser(nn.Module):
    def __init__(self, ch=32, blocks=12):
        super().__init__()
        self.inp = nn.Conv1d(1, ch, 7, padding=3)
        self.trunk = nn.ModuleList(DilatedBlock(ch, 2 ** (k % 6)) for k in range(blocks))
        self.out = nn.Conv1d(ch, 1, 7, padding=3)

    def forward(self, x):
        h = self.inp(x)
        for s in range(0, len(self.trunk), 4):
            h = checkpoint(self.section, h, s, use_reentrant=False)
        return x - self.out(h)

    def section(self, h, s):
        for block in self.trunk[s : s + 4]:
            h = block(h)
        return h


def traces(n=256, seed=0):
    g = torch.Generator().manual_seed(seed)
    spikes = (torch.rand(n, 1, SAMPLES, generator=g) < 0.01).float() * torch.randn(n, 1, SAMPLES, generator=g)
    t = torch.arange(-40, 41) / 8.0
    ricker = (1 - t**2) * torch.exp(-(t**2) / 2)
    return F.conv1d(spikes, ricker[None, None], padding=40)


def snr(clean, out):
    return 10 * torch.log10(clean.square().sum() / (clean - out).square().sum())


class Session:
    def __init__(self, folder):
        self.folder = folder
        self.data, self.held = traces(), traces(16, seed=1)
        self.model = Denoiser()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def noisy(self, clean):
        return clean + 0.3 * torch.randn_like(clean)

    def step(self):
        clean = self.data[torch.randint(0, len(self.data), (BATCH,))]
        loss = F.mse_loss(self.model(self.noisy(clean)), clean)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss

    def save(self, step):
        torch.save({"step": step, "model": self.model.state_dict()}, os.path.join(self.folder, "latest.pt"))

    @torch.no_grad()
    def check(self):
        return snr(self.held, self.model(self.noisy(self.held))).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        session, laps = Session(folder), []
        t0 = prev = time.perf_counter()
        while prev - t0 < args.seconds:
            loss = session.step()
            if len(laps) % 25 == 24:
                session.save(len(laps))
                print(f"{len(laps)} loss {loss.item():.4f}")
            now = time.perf_counter()
            laps.append(now - prev)
            prev = now
        print(f"held-out SNR {session.check():.2f} dB")
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)


if __name__ == "__main__":
    main()
