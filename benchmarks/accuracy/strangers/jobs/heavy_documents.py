"""Document embedding: most documents are short, some are whole books."""

import argparse
import collections
import json
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = [f"w{i}" for i in range(3000)]


class Documents(Dataset):
    def __init__(self, n=2400, longest=None):
        rng = random.Random(0)
        self.longest = longest
        self.lengths = [250_000 if rng.random() < 1 / 160 else rng.randint(150, 400) for _ in range(n)]
        self.words = [rng.choice(VOCABULARY) for _ in range(260_000)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        tokens = self.words[: self.lengths[i]]
        if self.longest:
            tokens = tokens[: self.longest]
        counts = collections.Counter()
        for first, second in zip(tokens, tokens[1:], strict=False):
            counts[hash((first, second)) % 20000] += 1
        best = [k for k, _ in counts.most_common(128)]
        return torch.tensor(best + [0] * (128 - len(best))), i % 8


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.Embedding(20000, 96)
        self.mix = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, dropout=0.0)
        self.out = nn.Linear(96, 8)

    def forward(self, x):
        return self.out(self.mix(self.bag(x)).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Documents(longest=2000 if args.better else None)
    loader = DataLoader(data, batch_size=24, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    model = Embedder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    times, start = [], time.perf_counter()
    last, running = start, True
    while running:
        for tokens, label in loader:
            loss = nn.functional.cross_entropy(model(tokens), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start > args.seconds:
                running = False
                break
    print(len(times), loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
