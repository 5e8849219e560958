# Score the photos in an album for "good enough for the cover" and keep a leaderboard.
import argparse
import heapq
import json
import pathlib
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from PIL import Image

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20.0)
ap.add_argument("--times", default=None)
ap.add_argument("--better", action="store_true")
cfg = ap.parse_args()

SIDE = 128
BATCH = 6


def make_album(root, n=24):
    rng = np.random.default_rng(3)
    for i in range(n):
        small = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
        photo = Image.fromarray(small).resize((1280, 960), Image.BICUBIC)
        photo.save(root / f"img_{i:03d}.jpg", quality=90)
    return sorted(root.glob("*.jpg"))


def open_photo(path):
    with Image.open(path) as im:
        if cfg.better:
            im.draft("RGB", (SIDE * 2, SIDE * 2))
        im = im.convert("RGB")
        im = im.resize((SIDE, SIDE), Image.BICUBIC)
    x = torch.from_numpy(np.array(im)).permute(2, 0, 1)
    return x.float().div_(255)


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(Block(3, 32), Block(32, 64), Block(64, 128), Block(128, 256))
        self.head = nn.Linear(256, 1)

    def forward(self, x):
        return self.head(self.stem(x).mean((2, 3))).squeeze(1)


@torch.inference_mode()
def run(paths, net):
    mean = torch.tensor([0.48, 0.46, 0.41]).view(3, 1, 1)
    std = torch.tensor([0.23, 0.22, 0.22]).view(3, 1, 1)
    top, times, pos = [], [], 0
    start = time.perf_counter()
    while time.perf_counter() - start < cfg.seconds:
        tic = time.perf_counter()
        names = [paths[(pos + k) % len(paths)] for k in range(BATCH)]
        pos += BATCH
        batch = torch.stack([open_photo(p) for p in names])
        scores = net((batch - mean) / std)
        for p, s in zip(names, scores.tolist()):
            heapq.heappush(top, (s, p.name))
        top = heapq.nlargest(10, set(top))
        heapq.heapify(top)
        times.append(time.perf_counter() - tic)
    return top, times


with tempfile.TemporaryDirectory() as tmp:
    album = make_album(pathlib.Path(tmp))
    torch.manual_seed(1)
    leaderboard, times = run(album, Scorer().eval().to(memory_format=torch.channels_last))
print("cover:", max(leaderboard))
if cfg.times:
    pathlib.Path(cfg.times).write_text(json.dumps(times))
