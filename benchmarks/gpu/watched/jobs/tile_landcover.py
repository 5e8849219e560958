"""Land cover segmentation, one region of a satellite mosaic after another (a region is a short epoch of its tiles)."""

import argparse
import os

import numpy as np
import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ON_GPU = torch.cuda.is_available()
CURED = os.environ.get("CURED") == "1"


class Tiles(Dataset):
    """Tiles cut at random from a mosaic that lies in memory, flipped and turned."""

    def __init__(self, count, size, bands=4):
        rng = np.random.default_rng(0)
        side = 1024 if ON_GPU else 128
        self.mosaic = rng.integers(0, 255, (bands, side, side), dtype=np.uint8)
        self.labels = rng.integers(0, 9, (side, side), dtype=np.uint8)
        self.count, self.size, self.side = count, size, side

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        y, x = (int(v) for v in torch.randint(0, self.side - self.size, (2,)))
        image = self.mosaic[:, y : y + self.size, x : x + self.size]
        label = self.labels[y : y + self.size, x : x + self.size]
        if i % 2:
            image, label = image[:, :, ::-1], label[:, ::-1]
        return torch.from_numpy(image.copy()), torch.from_numpy(label.copy())


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class SmallUNet(nn.Module):
    def __init__(self, bands, classes, width):
        super().__init__()
        w = [width, width * 2, width * 4, width * 8]
        self.down = nn.ModuleList(
            nn.Sequential(conv(i, o), conv(o, o)) for i, o in zip([bands, *w[:-1]], w, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(o, i, 2, 2) for i, o in zip(w[:-1], w[1:], strict=True))
        self.merge = nn.ModuleList(conv(2 * i, i) for i in w[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for k, stage in enumerate(self.down):
            x = stage(x if k == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for k in (2, 1, 0):
            x = self.merge[k](torch.cat([self.up[k](x), skips[k]], 1))
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32 if ON_GPU else 2)
    parser.add_argument("--size", type=int, default=192 if ON_GPU else 32)
    parser.add_argument("--batches-per-region", type=int, default=24 if ON_GPU else 6)
    parser.add_argument("--workers", type=int, default=8 if ON_GPU else 2)
    args = parser.parse_args()

    device = torch.device("cuda" if ON_GPU else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = SmallUNet(4, 9, 64 if ON_GPU else 8).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    loader = DataLoader(
        Tiles(args.batch * args.batches_per_region, args.size),
        args.batch,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=ON_GPU,
        drop_last=True,
        persistent_workers=CURED,
    )

    clock = Stopwatch()
    region = 0
    while True:
        for image, label in loader:
            image = image.to(device, non_blocking=True).float().div_(255)
            image = image.contiguous(memory_format=torch.channels_last)
            label = label.to(device, non_blocking=True).long()
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.cross_entropy(net(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if clock.tick():
                return
        region += 1
        print(f"region {region}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
