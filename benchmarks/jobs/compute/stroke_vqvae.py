"""VQ-VAE for sketch tiles: convolutional autoencoder with a learned codebook (EMA-free, straight-through)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def sketches(n=1500, size=32, seed=2):
    g = torch.Generator().manual_seed(seed)
    grid = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    image = torch.zeros(n, size, size)
    for _ in range(4):
        angle = torch.rand(n, 1, 1, generator=g) * 3.14
        shift = torch.rand(n, 1, 1, generator=g) - 0.5
        bend = torch.rand(n, 1, 1, generator=g) - 0.5
        line = xx * angle.cos() + yy * angle.sin() + bend * (xx * yy) - shift
        image = torch.maximum(image, torch.exp(-((line / 0.06) ** 2)))
    return image[:, None]


class Codebook(nn.Module):
    def __init__(self, entries, dim, opt, beta=0.25):
        super().__init__()
        self.table = nn.Embedding(entries, dim)
        nn.init.uniform_(self.table.weight, -1.0 / entries, 1.0 / entries)
        self.beta, self.opt = beta, opt

    @torch.no_grad()
    def nearest(self, flat):
        book = self.table.weight
        if self.opt.better:
            return torch.addmm(book.square().sum(1), flat, book.t(), alpha=-2).argmin(1)
        return (flat.unsqueeze(1) - book.unsqueeze(0)).square().sum(-1).argmin(1)

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c)
        code = self.nearest(flat)
        q = self.table(code)
        loss = F.mse_loss(q, flat.detach()) + self.beta * F.mse_loss(flat, q.detach())
        q = flat + (q - flat).detach()
        return q.view(b, h, w, c).permute(0, 3, 1, 2), loss, code


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(width, width // 2, 3, padding=1)
        self.b = nn.Conv2d(width // 2, width, 1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class SketchVQ(nn.Module):
    def __init__(self, opt, width=48, dim=24, entries=192):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, width // 2, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 4, 2, 1),
            Residual(width),
            Residual(width),
            nn.Conv2d(width, dim, 1),
        )
        self.book = Codebook(entries, dim, opt)
        self.dec = nn.Sequential(
            nn.Conv2d(dim, width, 3, padding=1),
            Residual(width),
            Residual(width),
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width // 2, 1, 4, 2, 1),
        )

    def forward(self, x):
        q, commit, code = self.book(self.enc(x))
        return self.dec(q), commit, code


@torch.no_grad()
def usage(code, entries):
    share = torch.bincount(code, minlength=entries).float() / code.numel()
    return torch.exp(-(share * (share + 1e-9).log()).sum())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(sketches()), batch_size=opt.batch, shuffle=True, drop_last=True)
    model = SketchVQ(opt)
    optim = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for (x,) in loader:
            recon, commit, code = model(x)
            loss = F.mse_loss(recon, x) + commit
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 40 == 0:
                print(f"step {len(times)} loss {loss.item():.5f} codes in use {usage(code, 192).item():.1f}")
            if last - begin >= opt.seconds:
                break
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
