"""Trains a lesion segmentation net on axial CT slices.

Every study is stored as one compressed .npz with the volume and the lesion mask,
as the export tool of the radiology department writes them.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, DEPTH, STUDIES = 128, 48, 6


def export_studies(folder):
    rng = np.random.default_rng(0)
    for i in range(STUDIES):
        base = rng.normal(-200, 300, (DEPTH // 4, SIDE // 4, SIDE // 4)).repeat(4, 0).repeat(4, 1).repeat(4, 2)
        volume = (base + rng.integers(-12, 12, base.shape)).astype(np.int16)
        np.savez_compressed(folder / f"study_{i:03d}.npz", volume=volume, lesion=(volume > 250).astype(np.uint8))


class SliceDataset(Dataset):
    def __init__(self, folder, keep_open):
        self.paths = sorted(folder.glob("study_*.npz"))
        self.keep_open = keep_open
        self.studies = {}

    def __len__(self):
        return len(self.paths) * DEPTH

    def study(self, path):
        if path in self.studies:
            return self.studies[path]
        with np.load(path) as f:
            arrays = f["volume"], f["lesion"]
        if self.keep_open:
            self.studies[path] = arrays
        return arrays

    def __getitem__(self, index):
        study, z = divmod(index, DEPTH)
        volume, lesion = self.study(self.paths[study])
        image = np.clip(volume[z].astype(np.float32), -1000, 1000) / 1000
        return torch.from_numpy(image)[None], torch.from_numpy(lesion[z].astype(np.float32))[None]


def block(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(inplace=True),
        nn.Conv2d(b, b, 3, padding=1, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(inplace=True),
    )


class SmallUNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.d1, self.d2, self.d3 = block(1, w), block(w, 2 * w), block(2 * w, 4 * w)
        self.u2, self.u1 = block(6 * w, 2 * w), block(3 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        return self.out(self.u1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))


def dice_bce(logits, target):
    p = logits.sigmoid()
    dice = 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
    return dice + F.binary_cross_entropy_with_logits(logits, target)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d)
        export_studies(folder)
        loader = DataLoader(SliceDataset(folder, keep_open=args.better), batch_size=8, shuffle=True, drop_last=True)
        net = SmallUNet()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

        times, step = [], 0
        end = time.perf_counter() + args.seconds
        while time.perf_counter() < end:
            t0 = time.perf_counter()
            for image, lesion in loader:
                loss = dice_bce(net(image), lesion)
                opt.zero_grad()
                loss.backward()
                opt.step()
                step += 1
                times.append(time.perf_counter() - t0)
                if step % 20 == 0:
                    print(f"step {step}: loss {loss.item():.4f}")
                if time.perf_counter() > end:
                    break
                t0 = time.perf_counter()

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
