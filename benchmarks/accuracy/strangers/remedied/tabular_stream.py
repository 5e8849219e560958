"""Click prediction from a stream of CSV lines."""

import argparse
import datetime
import json
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FIELDS = 24


def write_csv(path, rows=6000):
    rng = np.random.default_rng(0)
    with open(path, "w") as f:
        for i in range(rows):
            values = rng.normal(size=FIELDS)
            stamp = datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=i)
            f.write(",".join([stamp.isoformat(), str(int(values[0] > 0)), *(f"{v:.4f}" for v in values)]) + "\n")


class ClickStream(IterableDataset):
    """Rows of the log, for ever."""

    def __init__(self, path):
        self.path = path

    def features(self, line):
        fields = line.rstrip("\n").split(",")
        when = datetime.datetime.strptime(fields[0], "%Y-%m-%dT%H:%M:%S")
        numbers = [float(v) for v in fields[2:]]
        x = [when.hour / 24, when.weekday() / 7, *numbers]
        return torch.tensor(x), torch.tensor(float(fields[1]))

    def __iter__(self):
        while True:
            with open(self.path) as f:
                for line in f:
                    yield self.features(line)


class ParsedClicks(IterableDataset):
    def __init__(self, path):
        rows = [ClickStream(path).features(line) for line in open(path)]
        self.x = torch.stack([r[0] for r in rows])
        self.y = torch.stack([r[1] for r in rows])

    def __iter__(self):
        while True:
            for i in range(0, len(self.x) - 1023, 1024):
                yield self.x[i : i + 1024], self.y[i : i + 1024]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = os.path.join(tempfile.mkdtemp(), "clicks.csv")
    write_csv(path)
    if args.better:
        loader = DataLoader(ParsedClicks(path), batch_size=None)
    else:
        loader = DataLoader(ClickStream(path), batch_size=1024, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Linear(FIELDS + 2, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    times, start = [], time.perf_counter()
    last = start
    for x, y in loader:
        logits = model(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    print("final loss", loss.item(), "steps", len(times))
    if args.times:
        json.dump(times, open(args.times, "w"))


main()
