"""Ranking of search results; a thread makes the batches ahead of time."""

import argparse
import json
import random
import time

import torch
from torch import multiprocessing, nn

QUERIES = ["red shoes", "usb cable", "garden hose", "coffee beans", "running watch"]


def text_features(query, title, buckets=256):
    row = [0.0] * buckets
    for text in (query, title):
        for n in (2, 3):
            for i in range(len(text) - n + 1):
                value = 7
                for ch in text[i : i + n]:
                    value = (value * 31 + ord(ch)) % 1_000_003
                row[value % buckets] += 1.0
    return row


def make_batch(rng, size=96):
    rows, labels = [], []
    for _ in range(size):
        query = rng.choice(QUERIES)
        title = " ".join(rng.choice(QUERIES) for _ in range(3))
        rows.append(text_features(query, title))
        labels.append(float(query in title))
    return torch.tensor(rows), torch.tensor(labels)


def feed(ready, rng):
    torch.set_num_threads(1)
    while True:
        ready.put(make_batch(rng))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    towers = nn.ModuleList(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(48))
    head = nn.Linear(64, 1)
    optimizer = torch.optim.SGD([*towers.parameters(), *head.parameters()], lr=0.01)
    ready = multiprocessing.Queue(maxsize=4)

    prepared = [make_batch(rng) for _ in range(24)]
    if not args.better:
        multiprocessing.Process(target=feed, args=(ready, rng), daemon=True).start()
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        x, y = prepared[step % len(prepared)] if args.better else ready.get()
        h = sum(tower(x) for tower in towers) / len(towers)
        loss = nn.functional.binary_cross_entropy_with_logits(head(h).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("steps", step, "loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
