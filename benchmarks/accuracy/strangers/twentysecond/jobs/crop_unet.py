"""Field-crop segmentation from four-band satellite scenes, trained on random patches."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BANDS, CLASSES = 4, 5
SCENE, PATCH = 640, 64


def scenes(n=12, seed=0):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, CLASSES, (n, SCENE // 32, SCENE // 32))
    mask = coarse.repeat(32, 1).repeat(32, 2).astype(np.int64)
    palette = rng.uniform(0.2, 0.8, (CLASSES, BANDS)).astype(np.float32)
    image = palette[mask].transpose(0, 3, 1, 2) + rng.normal(0, 0.08, (n, BANDS, SCENE, SCENE))
    return image.clip(0.02, 1).astype(np.float32), mask


class PatchSampler:
    def __init__(self, image, mask, seed=0, window_first=False):
        self.image, self.mask = image, mask
        self.rng = np.random.default_rng(seed)
        self.window_first = window_first

    def light(self, img, gamma, gain, haze):
        img = np.power(img, gamma)
        img *= gain[:, None, None]
        img += haze * (1 - img)
        return np.clip(img, 0, 1, out=img)

    def one(self):
        rng = self.rng
        i = rng.integers(len(self.image))
        top, left = rng.integers(0, SCENE - PATCH, 2)
        gamma, haze = np.float32(rng.uniform(0.7, 1.4)), np.float32(rng.uniform(0, 0.2))
        gain = rng.uniform(0.85, 1.15, BANDS).astype(np.float32)
        turns = rng.integers(4)
        window = np.s_[..., top : top + PATCH, left : left + PATCH]
        if self.window_first:
            img = self.light(self.image[i][window], gamma, gain, haze)
        else:
            img = self.light(self.image[i], gamma, gain, haze)[window]
        mask = self.mask[i][window]
        return np.rot90(img, turns, (1, 2)), np.rot90(mask, turns)

    def batch(self, size):
        images, masks = zip(*(self.one() for _ in range(size)))
        x = torch.from_numpy(np.stack(images)).contiguous(memory_format=torch.channels_last)
        return x, torch.from_numpy(np.stack(masks))


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, widths=(16, 32, 64)):
        super().__init__()
        a, b, c = widths
        self.down1, self.down2, self.middle = double(BANDS, a), double(a, b), double(b, c)
        self.up2, self.up1 = nn.ConvTranspose2d(c, b, 2, 2), nn.ConvTranspose2d(b, a, 2, 2)
        self.join2, self.join1 = double(2 * b, b), double(2 * a, a)
        self.head = nn.Conv2d(a, CLASSES, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        y = self.middle(F.max_pool2d(two, 2))
        y = self.join2(torch.cat([self.up2(y), two], 1))
        y = self.join1(torch.cat([self.up1(y), one], 1))
        return self.head(y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(0)

    sampler = PatchSampler(*scenes(), window_first=args.better)
    model = UNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    durations, step = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        x, y = sampler.batch(args.batch)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 25 == 0:
            right = (logits.argmax(1) == y).float().mean()
            print(f"step {step} loss {loss.item():.3f} pixel accuracy {right.item():.3f}")
        durations.append(time.perf_counter() - t0)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(durations, f)


if __name__ == "__main__":
    main()
