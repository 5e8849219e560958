"""Counts the species on photographs of a reef: a ResNet-50 over prepared batches, a tally per class at the end."""

import os

import torch

from stopwatch import Stopwatch

CURED = os.environ.get("CURED") == "1"


def classifier(species):
    try:
        from torchvision.models import resnet50

        return resnet50(weights=None, num_classes=species)
    except ImportError:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 7, 4),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(16, species),
        )


def prepared(count, batch, side):
    """Normalised photographs, as the preparation left them in memory."""
    photographs = []
    for _ in range(count):
        photos = torch.rand(batch, 3, side, side).sub_(0.45).div_(0.22)
        photographs.append(photos.pin_memory() if CURED and torch.cuda.is_available() else photos)
    return photographs


def main():
    torch.manual_seed(11)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, side = (128, 224) if device == "cuda" else (2, 64)
    species = 640
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = classifier(species).to(device, dtype, memory_format=torch.channels_last).eval()
    dives = prepared(6, batch, side)
    tally = torch.zeros(species, device=device)
    ones = torch.ones(batch, device=device)
    clock = Stopwatch()
    number = 0
    with torch.inference_mode():
        while True:
            photos = dives[number % len(dives)].to(device, non_blocking=CURED)
            scores = model(photos.to(dtype, memory_format=torch.channels_last))
            tally.index_add_(0, scores.argmax(1), ones)
            number += 1
            if clock.tick():
                break
    print(f"most seen: species {int(tally.argmax())}")


if __name__ == "__main__":
    main()
