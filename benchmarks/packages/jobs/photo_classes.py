"""Train a classifier of thumbnails from a datasets folder of photos, with Accelerate."""

import io

import numpy as np
import torch
from accelerate import Accelerator
from clock import Clock, arguments
from datasets import Dataset, Features, Image, Value, disable_progress_bars
from PIL import Image as Pictures
from torch import nn
from torch.utils.data import DataLoader

disable_progress_bars()


def make_photos(count):
    rng = np.random.default_rng(0)
    photos = []
    for _ in range(count):
        coarse = Pictures.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((1024, 768), Pictures.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        photos.append({"path": None, "bytes": buffer.getvalue()})
    features = Features({"photo": Image(), "label": Value("int64")})
    return Dataset.from_dict({"photo": photos, "label": [n % 8 for n in range(count)]}, features=features)


def shrink(row):
    row["photo"] = row["photo"].convert("RGB").resize((96, 96))
    return row


def to_tensors(rows):
    pixels = [np.asarray(photo.convert("RGB").resize((96, 96))) for photo in rows["photo"]]
    images = [torch.from_numpy(array.copy()).permute(2, 0, 1) / 255 for array in pixels]
    return {"image": images, "label": rows["label"]}


def make_model():
    layers = []
    for inputs, outputs in [(3, 16), (16, 32), (32, 64)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 8))


def main():
    args = arguments(steps=160)
    clock = Clock()
    torch.manual_seed(0)
    photos = make_photos(160)
    if args.fixed:
        photos = photos.map(shrink)
    photos.set_transform(to_tensors)
    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(photos, batch_size=16, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while clock.count < args.steps:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()
            if clock.count == args.steps:
                break
    clock.report()


if __name__ == "__main__":
    main()
