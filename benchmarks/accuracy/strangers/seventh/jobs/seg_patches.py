"""Train a small U-Net on random patches of aerial tiles (binary building masks)."""

import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    tiles: int = 20
    tile: int = 768
    patch: int = 64
    batch: int = 6
    width: int = 16
    lr: float = 2e-3


class AerialTiles(Dataset):
    mean = torch.tensor([0.41, 0.43, 0.38]).view(3, 1, 1)
    std = torch.tensor([0.21, 0.19, 0.20]).view(3, 1, 1)

    def __init__(self, cfg, better):
        g = torch.Generator().manual_seed(3)
        self.cfg, self.better = cfg, better
        self.images = torch.randint(0, 256, (cfg.tiles, 3, cfg.tile, cfg.tile), dtype=torch.uint8, generator=g)
        self.masks = (torch.rand(cfg.tiles, 1, cfg.tile, cfg.tile, generator=g) > 0.8).to(torch.uint8)

    def __len__(self):
        return self.cfg.tiles * 20

    def crop(self, img, mask):
        p = self.cfg.patch
        y, x = torch.randint(0, self.cfg.tile - p, (2,)).tolist()
        return img[:, y : y + p, x : x + p], mask[:, y : y + p, x : x + p]

    def augment(self, img, mask):
        img = img.float() / 255
        img = img * (0.8 + 0.4 * torch.rand(1))
        img = img + 0.1 * (torch.rand(3, 1, 1) - 0.5)
        if torch.rand(1) < 0.5:
            img, mask = img.flip(-1), mask.flip(-1)
        img = (img.clamp(0, 1) - self.mean) / self.std
        return img, mask.float()

    def __getitem__(self, i):
        img, mask = self.images[i % self.cfg.tiles], self.masks[i % self.cfg.tiles]
        if self.better:
            return self.augment(*self.crop(img, mask))
        img, mask = self.augment(img, mask)
        return self.crop(img, mask)


def block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.d1, self.d2, self.d3 = block(12, w), block(w, 2 * w), block(2 * w, 4 * w)
        self.u2, self.u1 = block(6 * w, 2 * w), block(3 * w, w)
        self.out = nn.Conv2d(w, 4, 1)

    def forward(self, x):
        a = self.d1(F.pixel_unshuffle(x, 2))
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return F.pixel_shuffle(self.out(a), 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    cfg = Config()
    loader = DataLoader(AerialTiles(cfg, args.better), batch_size=cfg.batch, shuffle=True, drop_last=True)
    net = UNet(cfg.width)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, fused=True)
    times, t0 = [], time.perf_counter()
    last = t0
    while last - t0 < args.seconds:
        for img, mask in loader:
            logit = net(img)
            loss = F.binary_cross_entropy_with_logits(logit, mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 25 == 0:
                print(f"{len(times):5d} bce {loss.item():.4f}")
            if now - t0 > args.seconds:
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
