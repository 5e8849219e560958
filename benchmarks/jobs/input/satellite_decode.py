"""Segmentation of satellite tiles stored zlib-compressed, read by a worker."""

import argparse
import json
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, n=256, side=96, bands=6, cached=False):
        rng = np.random.default_rng(3)
        self.shape = (bands, side, side)
        self.blobs = []
        for _ in range(n):
            smooth = rng.normal(size=self.shape).cumsum(1).cumsum(2)
            self.blobs.append(zlib.compress(smooth.astype(np.float32).tobytes(), 6))
        self.cache = [self.decode(b) for b in self.blobs] if cached else None

    def decode(self, blob):
        tile = np.frombuffer(zlib.decompress(blob), np.float32).reshape(self.shape)
        low, high = np.percentile(tile, (2, 98), axis=(1, 2), keepdims=True)
        ranks = np.sort(tile.reshape(len(tile), -1), axis=1)
        equalised = np.stack([np.searchsorted(r, b.ravel()).reshape(b.shape) for r, b in zip(ranks, tile, strict=True)])
        tile = np.clip((tile - low) / (high - low), 0, 1) + equalised / tile[0].size
        return torch.from_numpy(tile.astype(np.float32))

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        x = self.cache[i] if self.cache else self.decode(self.blobs[i])
        return x, (x[0] > 0.8).long()


def unet():
    def block(a, b, stride=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b), nn.ReLU())

    return nn.Sequential(
        block(6, 16), block(16, 24, 2), block(24, 24), nn.Upsample(scale_factor=2), block(24, 16), nn.Conv2d(16, 2, 1)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Tiles(cached=args.better), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
    )
    model = unet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    times, start = [], time.perf_counter()
    last, done = start, False
    while not done:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            done = now - start > args.seconds
            if done:
                break
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
