"""Shelf-photo product classifier trained with accelerate on JPEG photos from store phones."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def take_photos(folder, count, rng):
    """Draws fake shelf photos; the label is the dominant package colour."""
    index = []
    for i in range(count):
        label = int(rng.integers(CLASSES))
        photo = Image.new("RGB", (800, 600), tuple(int(v) for v in rng.integers(120, 255, 3)))
        draw = ImageDraw.Draw(photo)
        for _ in range(60):
            x, y = int(rng.integers(0, 740)), int(rng.integers(0, 520))
            hue = int((label * 25 + rng.integers(0, 18)) % 256)
            draw.rectangle([x, y, x + 60, y + 80], fill=(hue, 255 - hue, int(rng.integers(256))))
        path = os.path.join(folder, f"{i:04d}.jpg")
        photo.save(path, quality=85)
        index.append((path, label))
    return index


class ShelfPhotos(Dataset):
    def __init__(self, index, size, repeat, shrink_first=False):
        self.index = index
        self.size = size
        self.repeat = repeat
        self.shrink_first = shrink_first

    def __len__(self):
        return len(self.index) * self.repeat

    def load(self, path):
        photo = Image.open(path)
        if self.shrink_first:
            photo.draft("RGB", (2 * self.size, 2 * self.size))
            photo = photo.convert("RGB").resize((self.size, self.size), Image.BILINEAR)
        else:
            photo = photo.convert("RGB")
        x = torch.from_numpy(np.array(photo)).permute(2, 0, 1).float() / 255.0
        x = (x - MEAN) / STD
        if x.shape[-1] != self.size:
            x = F.interpolate(x[None], (self.size, self.size), mode="bilinear", antialias=True)[0]
        return x

    def __getitem__(self, i):
        path, label = self.index[i % len(self.index)]
        x = self.load(path)
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x, label


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.SiLU())


def build_model(width=24):
    return nn.Sequential(
        conv(3, width, 2),
        conv(width, 2 * width, 2),
        conv(2 * width, 2 * width),
        conv(2 * width, 4 * width, 2),
        conv(4 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CLASSES),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--seconds", type=float, default=16)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()

    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        photos = take_photos(folder, 64, np.random.default_rng(1))
        data = ShelfPhotos(photos, args.size, 5000, shrink_first=args.better)
        loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
        model = build_model()
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        model, opt, loader = accelerator.prepare(model, opt, loader)
        times, right, seen = [], 0, 0
        begin = last = time.perf_counter()
        for step, (x, y) in enumerate(loader):
            logits = model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=0.1)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
            right += int((logits.argmax(1) == y).sum())
            seen += len(y)
            if step % 30 == 0:
                accelerator.print(f"{step:5d} loss {loss.item():.3f} acc {right / seen:.3f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - begin > args.seconds:
                break
    if args.times and accelerator.is_main_process:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
