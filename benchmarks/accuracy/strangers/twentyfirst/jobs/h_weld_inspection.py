"""Classifies weld-seam photographs (good, pore, crack, spatter) with a small convolutional net."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

SIZE, CLASSES, BATCH = 64, 4, 32


def make_photos(n, seed=0):
    """uint8 photographs with a seam in the middle and the class's defect on it."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (n,), generator=g)
    photos = torch.randint(60, 110, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=g)
    photos[:, :, 26:38] += 60
    for i, kind in enumerate(labels.tolist()):
        x = int(torch.randint(6, SIZE - 16, (), generator=g))
        if kind == 1:
            photos[i, :, 29:34, x : x + 5] = 20
        elif kind == 2:
            photos[i, :, 31:33, x : x + 14] = 10
        elif kind == 3:
            photos[i, :, 12:52:8, x : x + 3] = 240
    return photos.contiguous(memory_format=torch.channels_last), labels


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.down = nn.Conv2d(cin, cout, 3, stride=2, padding=1)
        self.conv1 = nn.Conv2d(cout, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        x = F.relu(self.down(x))
        return F.relu(x + self.gain * self.conv2(F.relu(self.conv1(x))))


class WeldNet(nn.Module):
    def __init__(self, widths=(64, 128, 256)):
        super().__init__()
        pairs = zip((3,) + widths[:-1], widths)
        self.stages = nn.Sequential(*[Stage(a, b) for a, b in pairs])
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def batches(photos, labels):
    while True:
        order = torch.randperm(len(labels))
        for idx in order.split(BATCH):
            if len(idx) == BATCH:
                x = photos[idx].to(torch.bfloat16).div_(127.5).sub_(1)
                if torch.rand(()) < 0.5:
                    x = x.flip(-1)
                yield x, labels[idx]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    stream = batches(*make_photos(1500))
    model = WeldNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, fused=True)

    times, step, correct = [], 0, 0.25
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        images, labels = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        correct = 0.95 * correct + 0.05 * (logits.argmax(1) == labels).float().mean().item()
        step += 1
        times.append(time.perf_counter() - began)
        if step % 25 == 0:
            print(f"step {step}: loss {loss.item():.3f} accuracy {correct:.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
