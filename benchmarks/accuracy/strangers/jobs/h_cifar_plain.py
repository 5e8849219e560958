"""Small images in memory, SGD; evaluation and the checkpoint come after the loop."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn


def evaluate(model, images, labels):
    model.eval()
    with torch.no_grad():
        hits = sum(
            (model(x).argmax(1) == y).sum().item() for x, y in zip(images.split(64), labels.split(64), strict=True)
        )
    model.train()
    return hits / len(labels)


def save_model(model, optimizer):
    path = os.path.join(tempfile.mkdtemp(), "final.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(2000, 3, 32, 32), torch.randint(0, 10, (2000,))
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    times, start = [], time.perf_counter()
    last = start
    while last - start < args.seconds:
        pick = torch.randint(0, 2000, (64,))
        loss = nn.functional.cross_entropy(model(images[pick]), labels[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 50 == 0:
            print(f"step {len(times)} loss {loss.item():.3f}")
    for _ in range(3):
        print("accuracy", evaluate(model, images, labels), save_model(model, optimizer))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
