"""Leaf disease classification from JPEG files with random crops."""

import argparse
import json
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset


class LeafFolder(Dataset):
    def __init__(self, root):
        self.files = sorted(os.path.join(root, f) for f in os.listdir(root))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path = self.files[i]
        img = Image.open(path).convert("RGB")
        w, h = img.size
        side = random.randint(min(w, h) // 2, min(w, h))
        left, top = random.randint(0, w - side), random.randint(0, h - side)
        img = img.crop((left, top, left + side, top + side)).resize((64, 64), Image.BICUBIC)
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
        img = ImageEnhance.Color(img).enhance(random.uniform(0.7, 1.3))
        x = torch.from_numpy(np.array(img)).permute(2, 0, 1).float().div_(255.0)
        return x, int(os.path.basename(path).split("_")[0])


def write_images(root, n=160, size=320):
    rng = np.random.default_rng(0)
    for i in range(n):
        coarse = Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8))
        coarse.resize((size, size), Image.BILINEAR).save(os.path.join(root, f"{i % 8}_{i:05d}.jpg"), quality=92)


def build_model(classes=8):
    def block(i, o):
        return [nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *block(3, 16), *block(16, 32), *block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as root:
        write_images(root)
        workers = 2 if args.better else 0
        loader = DataLoader(
            LeafFolder(root),
            batch_size=16,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )
        model = build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        times = []
        last = time.perf_counter()
        stop = last + args.seconds
        done = False
        while not done:
            for images, labels in loader:
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if now > stop:
                    done = True
                    break
        print("steps", len(times), "loss", round(loss.item(), 3))
        del loader

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
