"""Train a small classifier on camera photos kept as JPEG on disk."""

import argparse
import io
import json
import time

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
args = parser.parse_args()
torch.manual_seed(0)
SIDE = 96


def fake_camera_roll(n):
    rng = np.random.default_rng(3)
    files = []
    for _ in range(n):
        coarse = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((1280, 960), Image.BICUBIC)
        buf = io.BytesIO()
        photo.save(buf, "JPEG", quality=90)
        files.append((buf.getvalue(), int(rng.integers(0, 10))))
    return files


class PhotoSet(Dataset):
    def __init__(self, files):
        self.files = files
        self.mean = np.array([0.485, 0.456, 0.406], dtype=np.float32)
        self.std = np.array([0.229, 0.224, 0.225], dtype=np.float32)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        raw, label = self.files[i]
        img = Image.open(io.BytesIO(raw))
        if args.better:
            img.draft("RGB", (2 * SIDE, 2 * SIDE))
        img = img.convert("RGB").resize((SIDE, SIDE), Image.BILINEAR)
        arr = (np.asarray(img, dtype=np.float32) / 255.0 - self.mean) / self.std
        return torch.from_numpy(arr.transpose(2, 0, 1).copy()), label


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


net = nn.Sequential(
    block(3, 24),
    block(24, 48),
    block(48, 96),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(96, 10),
)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(PhotoSet(fake_camera_roll(64)), batch_size=16, shuffle=True, drop_last=True)

step_times = []
begin = last = time.perf_counter()
while last - begin < args.seconds:
    for images, labels in loader:
        opt.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        opt.step()
        now = time.perf_counter()
        step_times.append(now - last)
        last = now
        if now - begin >= args.seconds:
            break
print(f"{len(step_times)} steps, loss {loss.item():.3f}")
if args.times:
    with open(args.times, "w") as f:
        json.dump(step_times, f)
