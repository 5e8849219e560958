"""VQ-VAE on 32x32 images, after van den Oord et al. 2017."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Quantizer(nn.Module):
    def __init__(self, codes=256, dim=32, beta=0.25, expand=True):
        super().__init__()
        self.book = nn.Parameter(torch.empty(codes, dim).uniform_(-1 / codes, 1 / codes))
        self.beta, self.expand = beta, expand

    def distances(self, z):
        if self.expand:
            return ((z.unsqueeze(1) - self.book.unsqueeze(0)) ** 2).sum(-1)
        return z.pow(2).sum(1, keepdim=True) - 2 * z @ self.book.T + self.book.pow(2).sum(1)

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c)
        with torch.no_grad():
            idx = self.distances(flat).argmin(1)
        q = self.book[idx].view(b, h, w, c).permute(0, 3, 1, 2)
        loss = F.mse_loss(q, z.detach()) + self.beta * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss, idx


class Res(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a, self.b = nn.Conv2d(ch, ch, 3, padding=1), nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class VQVAE(nn.Module):
    def __init__(self, expand, ch=64, dim=32):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, ch, 4, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 4, 2, 1), Res(ch), Res(ch), nn.Conv2d(ch, dim, 1)
        )
        self.vq = Quantizer(dim=dim, expand=expand)
        self.dec = nn.Sequential(
            nn.Conv2d(dim, ch, 3, padding=1),
            Res(ch),
            Res(ch),
            nn.ConvTranspose2d(ch, ch, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(ch, 3, 4, 2, 1),
        )

    def forward(self, x):
        q, vq_loss, idx = self.vq(self.enc(x))
        return self.dec(q), vq_loss, idx


def blobs(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=g) - 0.5
    r = ((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2).unsqueeze(1)
    return torch.exp(-r * 4) * torch.rand(n, 3, 1, 1, generator=g)


def train(args):
    torch.manual_seed(3)
    images = blobs(2000)
    model = VQVAE(expand=not args.better)
    opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    times = []
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t = time.perf_counter()
        x = images[torch.randint(0, len(images), (32,))]
        rec, vq_loss, idx = model(x)
        loss = F.mse_loss(rec, x) / 0.06 + vq_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        if len(times) % 40 == 0:
            print(f"{len(times)}: loss {loss.item():.3f}, codes in use {idx.unique().numel()}")
        times.append(time.perf_counter() - t)
    return times


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    res = train(args)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(res, f)
