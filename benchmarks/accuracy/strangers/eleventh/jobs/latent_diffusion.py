"""Latent diffusion on a small curated picture set (frozen autoencoder, trainable denoiser)."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SCALE = 0.18


class Encoder(nn.Module):
    """The downsampling half of a pretrained autoencoder."""

    def __init__(self, ch=32, latent=4):
        super().__init__()
        self.stem = nn.Conv2d(3, ch, 3, padding=1)
        self.down = nn.ModuleList(
            [nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 2 * c, 3, 2, 1)) for c in (ch, 2 * ch, 4 * ch)]
        )
        self.out = nn.Conv2d(8 * ch, 2 * latent, 1)

    def forward(self, x):
        x = self.stem(x)
        for d in self.down:
            x = d(x)
        mean, _ = self.out(F.silu(x)).chunk(2, dim=1)
        return mean


class ResBlock(nn.Module):
    def __init__(self, c, emb):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, c), nn.GroupNorm(8, c)
        self.c1 = nn.Conv2d(c, c, 3, padding=1)
        self.c2 = nn.Conv2d(c, c, 3, padding=1)
        self.emb = nn.Linear(emb, c)

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.emb(e)[:, :, None, None]
        return x + self.c2(F.silu(self.n2(h)))


class Denoiser(nn.Module):
    def __init__(self, c=96, emb=128, classes=10, blocks=4):
        super().__init__()
        self.inp = nn.Conv2d(4, c, 3, padding=1)
        self.label = nn.Embedding(classes, emb)
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.blocks = nn.ModuleList(ResBlock(c, emb) for _ in range(blocks))
        self.out = nn.Conv2d(c, 4, 3, padding=1)
        self.register_buffer("freq", torch.exp(-math.log(1e4) * torch.arange(emb // 2) / (emb // 2)))

    def forward(self, x, t, y):
        angle = t[:, None].float() * self.freq
        e = self.time(torch.cat([angle.sin(), angle.cos()], 1)) + self.label(y)
        x = self.inp(x)
        for b in self.blocks:
            x = b(x, e)
        return self.out(F.silu(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()

    torch.manual_seed(3)
    cl = torch.channels_last
    pictures = torch.rand(240, 3, 64, 64).mul_(2).sub_(1).contiguous(memory_format=cl)
    classes = torch.randint(0, 10, (len(pictures),))
    vae = Encoder().eval().requires_grad_(False).to(memory_format=cl)
    net = Denoiser().to(memory_format=cl)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    latents = None
    if args.better:
        with torch.no_grad():
            latents = torch.cat([vae(p) * SCALE for p in pictures.split(args.batch)])

    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        for pick in torch.randperm(len(pictures)).split(args.batch):
            t0 = time.perf_counter()
            if latents is not None:
                z = latents[pick]
            else:
                with torch.no_grad():
                    z = vae(pictures[pick]) * SCALE
            t = torch.randint(0, 1000, (len(pick),))
            noise = torch.randn_like(z)
            a = alpha_bar[t].view(-1, 1, 1, 1)
            pred = net(a.sqrt() * z + (1 - a).sqrt() * noise, t, classes[pick])
            loss = F.mse_loss(pred, noise)
            opt.zero_grad()
            loss.backward()
            opt.step()
            times.append(time.perf_counter() - t0)
            if len(times) % 50 == 0:
                print(f"{len(times):5d}  mse {loss.item():.4f}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
