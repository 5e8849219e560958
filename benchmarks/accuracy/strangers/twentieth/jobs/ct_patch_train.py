"""Patch-based lesion segmentation on CT volumes with a small 3D U-Net."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler


def make_case(rng, side):
    """A volume in Hounsfield units with a few bright blobs and their mask."""
    vol = rng.normal(-600.0, 120.0, (side, side, side)).astype(np.float32)
    mask = np.zeros(vol.shape, dtype=np.uint8)
    for _ in range(12):
        z, y, x = rng.integers(8, side - 8, 3)
        r = int(rng.integers(3, 7))
        vol[z - r : z + r, y - r : y + r, x - r : x + r] += 650.0
        mask[z - r : z + r, y - r : y + r, x - r : x + r] = 1
    return vol.astype(np.int16), mask


class CTPatches(Dataset):
    def __init__(self, cases, patch=32, patches_per_case=64, cached_stats=False, seed=0):
        self.cases = cases
        self.patch = patch
        self.patches_per_case = patches_per_case
        self.rng = np.random.default_rng(seed)
        self.stats = [self.intensity_stats(v.astype(np.float32)) for v, _ in cases] if cached_stats else None

    def __len__(self):
        return len(self.cases) * self.patches_per_case

    @staticmethod
    def intensity_stats(vol):
        lo, hi = np.percentile(vol, (0.5, 99.5)).astype(np.float32)
        clipped = np.clip(vol, lo, hi)
        return lo, hi, clipped.mean(), clipped.std()

    @staticmethod
    def normalize(vol, stats):
        lo, hi, mean, std = stats
        return (np.clip(vol, lo, hi) - mean) / (std + 1e-5)

    def corner(self, shape):
        return [int(self.rng.integers(0, s - self.patch + 1)) for s in shape]

    def crop(self, arr, corner):
        z, y, x = corner
        p = self.patch
        return arr[z : z + p, y : y + p, x : x + p]

    def __getitem__(self, index):
        case = index // self.patches_per_case
        vol, mask = self.cases[case]
        corner = self.corner(vol.shape)
        if self.stats is not None:
            image = self.normalize(self.crop(vol, corner).astype(np.float32), self.stats[case])
        else:
            image = vol.astype(np.float32)
            image = self.normalize(image, self.intensity_stats(image))
            image = self.crop(image, corner)
        label = self.crop(mask, corner)
        if self.rng.random() < 0.5:
            image, label = image[:, :, ::-1], label[:, :, ::-1]
        image = torch.from_numpy(np.ascontiguousarray(image))[None]
        label = torch.from_numpy(np.ascontiguousarray(label)).float()[None]
        return image, label


def block(cin, cout):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, padding=1),
        nn.InstanceNorm3d(cout),
        nn.LeakyReLU(0.1),
        nn.Conv3d(cout, cout, 3, padding=1),
        nn.InstanceNorm3d(cout),
        nn.LeakyReLU(0.1),
    )


class UNet3D(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enc1, self.enc2, self.mid = block(1, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, stride=2)
        self.dec2 = block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.dec1 = block(2 * width, width)
        self.out = nn.Conv3d(width, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool3d(a, 2))
        c = self.mid(F.max_pool3d(b, 2))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        a = self.dec1(torch.cat([self.up1(b), a], 1))
        return self.out(a)


def dice_bce(logits, target):
    p = torch.sigmoid(logits)
    inter = (p * target).sum((1, 2, 3, 4))
    dice = 1 - (2 * inter + 1) / (p.sum((1, 2, 3, 4)) + target.sum((1, 2, 3, 4)) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(logits, target)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    cases = [make_case(rng, 112) for _ in range(6)]
    data = CTPatches(cases, cached_stats=args.better)
    loader = DataLoader(data, batch_size=2, sampler=RandomSampler(data, replacement=True, num_samples=10**7))
    model = UNet3D()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    times, losses = [], []
    start = last = time.perf_counter()
    for image, label in loader:
        loss = dice_bce(model(image), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    print(f"{len(times)} steps, loss {np.mean(losses[-20:]):.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
