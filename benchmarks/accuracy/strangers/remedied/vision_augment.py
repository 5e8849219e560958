"""Flower photos: a small convolutional network with augmentation."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flowers(Dataset):
    def __init__(self, n=512, size=64):
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 255, (n, size, size, 3), dtype=np.uint8)
        self.labels = rng.integers(0, 17, n)

    def __len__(self):
        return len(self.images)

    def color_jitter(self, image):
        hue = np.random.uniform(-0.1, 0.1)
        gray = image.mean(axis=2, keepdims=True)
        image = gray + (image - gray) * np.random.uniform(0.7, 1.3)
        return np.clip(np.roll(image, 1, axis=2) * hue + image, 0, 1)

    def blur(self, image):
        kernel = np.array([1, 4, 6, 4, 1], dtype=np.float32) / 16
        for axis in (0, 1):
            image = np.apply_along_axis(lambda row: np.convolve(row, kernel, mode="same"), axis, image)
        return image

    def __getitem__(self, i):
        image = self.images[i].astype(np.float32) / 255
        image = self.color_jitter(image)
        image = self.blur(image)
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32)), int(self.labels[i])


def make_model():
    layers, width = [], 3
    for out in (16, 32, 64, 64):
        layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 17))


class PreparedFlowers(Flowers):
    """Jitter on the fly, blur done once."""

    def __init__(self, n=512):
        super().__init__(n)
        self.blurred = np.stack([Flowers.blur(self, image.astype(np.float32) / 255) for image in self.images])

    def __getitem__(self, i):
        image = self.color_jitter(self.blurred[i])
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32)), int(self.labels[i])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(
        PreparedFlowers() if args.better else Flowers(),
        batch_size=16,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        persistent_workers=True,
    )
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    times, start, epoch = [], time.perf_counter(), 0
    last = start
    while time.perf_counter() - start < args.seconds:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 50 == 0:
                print(f"epoch {epoch} step {len(times)} loss {loss.item():.3f}")
            if now - start > args.seconds:
                break
        epoch += 1
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
