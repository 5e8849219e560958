"""Collect patch features of normal textures for anomaly detection, then build a coreset."""

import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
ap.add_argument("--seconds", type=float, default=14)
ap.add_argument("--images", type=int, default=12000)
args = ap.parse_args()

torch.manual_seed(0)


class Extractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 1, 1), nn.ReLU())

    def forward(self, x):
        a = self.stage1(x)
        b = self.stage2(a)
        b = F.interpolate(b, size=a.shape[-2:], mode="nearest")
        f = torch.cat([a, b], 1)
        return F.avg_pool2d(f, 2).flatten(2).transpose(1, 2).reshape(-1, f.shape[1])


class FeatureBank:
    def __init__(self):
        self.features = torch.empty(0, 192)

    def add(self, f):
        self.features = torch.cat([self.features, f])

    def result(self):
        return self.features


class ChunkedBank(FeatureBank):
    def __init__(self):
        self.chunks = []

    def add(self, f):
        self.chunks.append(f)

    def result(self):
        return torch.cat(self.chunks)


def texture_batches(n, size=64, batch=32):
    grid = torch.arange(size).float()
    for _ in range(n // batch):
        phase = torch.rand(batch, 3, 1, 1) * 6.28
        wave = torch.sin(grid[None, None, :, None] * 0.4 + phase) * torch.cos(grid * 0.3 + phase)
        yield wave + 0.1 * torch.randn(batch, 3, size, size)


def coreset(bank, k=64):
    sample = bank[torch.randperm(len(bank))[:4000]]
    chosen = [0]
    dist = (sample - sample[0]).norm(dim=1)
    for _ in range(k - 1):
        chosen.append(int(dist.argmax()))
        dist = torch.minimum(dist, (sample - sample[chosen[-1]]).norm(dim=1))
    return sample[chosen]


bank = ChunkedBank() if args.better else FeatureBank()
net = Extractor().eval()
times = []
begin = last = time.perf_counter()
with torch.inference_mode():
    for n, images in enumerate(texture_batches(args.images), 1):
        bank.add(net(images))
        if n % 50 == 0:
            print(f"{n * 32} images")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    memory = coreset(bank.result())
print("coreset", tuple(memory.shape))
if args.times:
    json.dump(times, open(args.times, "w"))
