"""Train a compact CNN on in-memory digits, evaluate once training is over."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def synthetic_digits(n):
    g = torch.Generator().manual_seed(0)
    protos = F.interpolate(torch.rand(10, 1, 7, 7, generator=g), size=28, mode="bilinear")
    labels = torch.randint(0, 10, (n,), generator=g)
    images = protos[labels] + 0.3 * torch.randn(n, 1, 28, 28, generator=g)
    return images.contiguous(memory_format=torch.channels_last), labels


def build():
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 49, 10),
    )
    return net.to(memory_format=torch.channels_last)


@torch.inference_mode()
@torch.autocast("cpu", dtype=torch.bfloat16)
def accuracy(model, images, labels):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in zip(images.split(512), labels.split(512)))
    return hits / len(labels)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    images, labels = synthetic_digits(12_000)
    train_x, train_y, test_x, test_y = images[:10_000], labels[:10_000], images[10_000:], labels[10_000:]
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, fused=True)
    model.train()

    times, running = [], torch.zeros(())
    order, cursor, batch = torch.randperm(len(train_x)), 0, 128
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        if cursor + batch > len(order):
            order, cursor = torch.randperm(len(train_x)), 0
        idx = order[cursor : cursor + batch]
        cursor += batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(train_x[idx]), train_y[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running += loss.detach()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(
        f"{len(times)} steps, mean loss {running.item() / len(times):.3f}, test acc {accuracy(model, test_x, test_y):.3f}"
    )
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
