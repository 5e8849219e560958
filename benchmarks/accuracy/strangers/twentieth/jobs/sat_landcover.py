"""Land-cover segmentation from multispectral scenes: random 96 px crops, small U-Net, 9 classes."""

import argparse
import functools
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BANDS, CLASSES, SCENE, CROP = 6, 9, 448, 96


def make_scenes(root, count, seed):
    rng = np.random.default_rng(seed)
    paths = []
    for i in range(count):
        coarse = rng.integers(0, CLASSES, (SCENE // 32, SCENE // 32)).astype(np.uint8)
        label = np.kron(coarse, np.ones((32, 32), np.uint8))
        base = rng.integers(400, 4000, (CLASSES, BANDS)).astype(np.uint16)
        bands = base[label] + rng.integers(0, 200, (SCENE, SCENE, BANDS)).astype(np.uint16)
        path = Path(root) / f"scene_{i:03d}.npz"
        np.savez_compressed(path, bands=bands, label=label)
        paths.append(path)
    return paths


def read_scene(path):
    with np.load(path) as archive:
        return archive["bands"], archive["label"]


class SceneCrops(Dataset):
    def __init__(self, paths, crops_per_epoch, read):
        self.paths = paths
        self.crops_per_epoch = crops_per_epoch
        self.read = read
        self.mean = np.full(BANDS, 2200, np.float32)
        self.std = np.full(BANDS, 1100, np.float32)

    def __len__(self):
        return self.crops_per_epoch

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        bands, label = self.read(self.paths[index % len(self.paths)])
        top, left = rng.integers(0, SCENE - CROP, 2)
        window = (slice(top, top + CROP), slice(left, left + CROP))
        x = (bands[window].astype(np.float32) - self.mean) / self.std
        y = label[window].astype(np.int64)
        if rng.random() < 0.5:
            x, y = x[:, ::-1], y[:, ::-1]
        return torch.from_numpy(x.transpose(2, 0, 1).copy()), torch.from_numpy(y.copy())


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.enc1, self.enc2, self.mid = block(BANDS, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.dec2, self.dec1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.dec1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.head(a)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as root:
        paths = make_scenes(root, 6, seed=1)
        read = functools.lru_cache(maxsize=None)(read_scene) if args.better else read_scene
        data = SceneCrops(paths, crops_per_epoch=4096, read=read)
        loader = DataLoader(data, batch_size=6, shuffle=True, num_workers=1, drop_last=True)
        model = UNet().to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        criterion = nn.CrossEntropyLoss()

        times, step, running = [], 0, 0.0
        begin = last = time.perf_counter()
        while last - begin < args.seconds:
            for x, y in loader:
                logits = model(x.to(memory_format=torch.channels_last))
                loss = criterion(logits, y)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                running = 0.95 * running + 0.05 * loss.item()
                step += 1
                if step % 20 == 0:
                    print(f"step {step} loss {running:.3f}", flush=True)
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if last - begin >= args.seconds:
                    break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
