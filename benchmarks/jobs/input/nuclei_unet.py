"""Nuclei segmentation on a small annotated set (microscopy tiles), U-Net with augmentation."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, n=32, size=96, crop=64, seed=1):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[:size, :size]
        self.image = np.zeros((n, size, size), dtype=np.float32)
        self.mask = np.zeros((n, size, size), dtype=np.float32)
        for i in range(n):
            for _ in range(14):
                cy, cx, r = rng.integers(0, size), rng.integers(0, size), rng.uniform(3, 8)
                blob = (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
                self.mask[i][blob] = 1
                self.image[i][blob] += rng.uniform(0.4, 0.9)
            self.image[i] += rng.normal(0, 0.15, (size, size))
        self.size, self.crop = size, crop

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        y, x = np.random.randint(0, self.size - self.crop, 2)
        window = np.s_[i, y : y + self.crop, x : x + self.crop]
        image, mask = self.image[window], self.mask[window]
        turns = np.random.randint(4)
        image, mask = np.rot90(image, turns), np.rot90(mask, turns)
        if np.random.rand() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        image = image * np.random.uniform(0.8, 1.2) + np.random.normal(0, 0.05, image.shape)
        return torch.from_numpy(image.astype(np.float32))[None], torch.from_numpy(mask.copy())[None]


def pair(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1, self.down2, self.mid = pair(1, width), pair(width, 2 * width), pair(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.dec2, self.dec1 = pair(4 * width, 2 * width), pair(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        a = self.dec1(torch.cat([self.up1(b), a], 1))
        return self.out(a)


def dice_bce(logits, mask):
    p = logits.sigmoid()
    inter = (p * mask).sum((1, 2, 3))
    dice = 1 - (2 * inter + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(logits, mask)


def seed_worker(_):
    np.random.seed(torch.initial_seed() % 2**32)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(
        Tiles(),
        batch_size=opt.batch,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        prefetch_factor=2,
        worker_init_fn=seed_worker,
        persistent_workers=opt.better,
    )
    model = UNet()
    optim = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    times, epoch = [], 0
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        epoch += 1
        total = torch.zeros(())
        for image, mask in loader:
            loss = dice_bce(model(image), mask)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            total += loss.detach()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= opt.seconds:
                break
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader):.4f}")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
