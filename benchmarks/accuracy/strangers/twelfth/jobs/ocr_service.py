"""Line recogniser behind a queue: crops are grouped by width and read in batches."""

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,-"
WIDTHS = (160, 224, 288, 352)
HEIGHT = 32


class LineNet(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.conv = nn.ModuleList(
            [nn.Conv2d(1, 24, 3, padding=1), nn.Conv2d(24, 48, 3, padding=1), nn.Conv2d(48, 64, 3, padding=1)]
        )
        self.mix = nn.ModuleList(nn.Conv1d(hidden, hidden, 5, padding=2) for _ in range(4))
        self.flat = nn.Linear(64 * (HEIGHT // 8), hidden)
        self.out = nn.Linear(hidden, len(ALPHABET) + 1)

    def forward(self, x):
        for c in self.conv:
            x = F.max_pool2d(F.relu(c(x)), 2)
        x = self.flat(x.permute(0, 3, 1, 2).flatten(2))
        y = x.transpose(1, 2)
        for m in self.mix:
            y = y + F.gelu(m(y))
        return self.out(y.transpose(1, 2)).log_softmax(-1)


@dataclass
class Reader:
    net: nn.Module
    slots: int = 1
    graphs: dict = field(default_factory=dict)

    def graph_for(self, x):
        key = tuple(x.shape)
        if key not in self.graphs:
            while len(self.graphs) >= self.slots:
                self.graphs.pop(next(iter(self.graphs)))
            traced = torch.jit.trace(self.net, x, check_trace=False)
            self.graphs[key] = torch.jit.freeze(traced)
        return self.graphs[key]

    @torch.no_grad()
    def read(self, x):
        best = self.graph_for(x)(x).argmax(-1).tolist()
        return [self.to_text(ids) for ids in best]

    @staticmethod
    def to_text(ids):
        text, prev = [], None
        for i in ids:
            if i != prev and i < len(ALPHABET):
                text.append(ALPHABET[i])
            prev = i
        return "".join(text)


def queue(seed=0, batch=12):
    rng = random.Random(seed)
    crops = {w: torch.rand(64, 1, HEIGHT, w) for w in WIDTHS}
    while True:
        w = rng.choices(WIDTHS, weights=(4, 3, 2, 1))[0]
        s = rng.randrange(64 - batch)
        yield crops[w][s : s + batch]


def serve(reader, seconds):
    laps, letters = [], Counter()
    begin = time.monotonic()
    for x in queue():
        t = time.perf_counter()
        for line in reader.read(x):
            letters.update(line)
        laps.append(time.perf_counter() - t)
        if time.monotonic() - begin >= seconds:
            return laps, letters


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    net = LineNet().eval()
    reader = Reader(net, slots=16 if args.better else 1)
    laps, letters = serve(reader, args.seconds)
    print(len(laps), "batches;", letters.most_common(3))
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v:.6f}\n" for v in laps)


if __name__ == "__main__":
    main()
