"""DDPM on synthetic 32x32 blobs, with gradient / weight health statistics for the run log."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, T, LOG_EVERY = 8, 400, 200

torch.manual_seed(4)


class Res(nn.Module):
    def __init__(self, ch, emb):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, ch), nn.GroupNorm(8, ch)
        self.c1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.c2 = nn.Conv2d(ch, ch, 3, padding=1)
        self.t = nn.Linear(emb, ch)

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.t(e)[:, :, None, None]
        return x + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, emb=128):
        super().__init__()
        self.emb = nn.Sequential(nn.Linear(64, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(3, 32, 3, padding=1)
        self.r1 = Res(32, emb)
        self.d1 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.r2 = Res(64, emb)
        self.d2 = nn.Conv2d(64, 192, 3, stride=2, padding=1)
        self.mid = Res(192, emb)
        self.u2 = nn.ConvTranspose2d(192, 64, 2, stride=2)
        self.u1 = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.out = nn.Conv2d(32, 3, 3, padding=1)
        self.register_buffer("freq", torch.exp(-math.log(1e4) * torch.arange(32) / 32))

    def forward(self, x, t):
        ang = t[:, None].float() * self.freq[None]
        e = self.emb(torch.cat([ang.sin(), ang.cos()], dim=1))
        h1 = self.r1(self.inp(x), e)
        h2 = self.r2(self.d1(h1), e)
        h3 = self.mid(self.d2(h2), e)
        h2 = h2 + self.u2(h3)
        return self.out(h1 + self.u1(h2))


class HealthLog:
    """Percentiles of weights and gradients per tensor, as the run log's histograms want them."""

    def __init__(self, model):
        self.named = list(model.named_parameters())
        self.q = torch.tensor([0.01, 0.5, 0.99])
        self.row = {}

    @torch.no_grad()
    def update(self):
        for name, p in self.named:
            self.row[f"grad/{name}"] = torch.quantile(p.grad.abs().flatten(), self.q)
            self.row[f"weight/{name}"] = torch.quantile(p.abs().flatten(), self.q)

    def show(self, step):
        worst = max((k for k in self.row if k.startswith("grad/")), key=lambda k: self.row[k][2].item())
        print(
            f"step {step} {len(self.row)} tensors, largest p99 gradient {worst} {self.row[worst][2].item():.2e}",
            flush=True,
        )


def synth_images(n):
    g = torch.Generator().manual_seed(8)
    ax = torch.linspace(-1, 1, 32)
    c = torch.rand(n, 2, generator=g) * 1.4 - 0.7
    r = torch.rand(n, 1, 1, generator=g) * 0.2 + 0.05
    d = (ax[None, :, None] - c[:, 0, None, None]) ** 2 + (ax[None, None] - c[:, 1, None, None]) ** 2
    blob = torch.exp(-d / r)
    tint = torch.rand(n, 3, 1, 1, generator=g)
    return blob[:, None] * tint * 2 - 1


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    images = synth_images(2000)
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.03, T), 0)
    model = UNet()
    optim = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    log = HealthLog(model)
    for step in steps_of(opt):
        x0 = images[torch.randint(0, len(images), (BATCH,))]
        t = torch.randint(0, T, (BATCH,))
        a = abar[t][:, None, None, None]
        noise = torch.randn_like(x0)
        loss = F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        if not opt.better:
            log.update()
        if (step + 1) % LOG_EVERY == 0:
            if opt.better:
                log.update()
            print(f"loss {loss.item():.4f}")
            log.show(step + 1)


if __name__ == "__main__":
    main()
