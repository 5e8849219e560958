# topic classifier on bag-of-embeddings documents, one loader worker, evaluation at the end
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TOPICS, VOCAB, LENGTH = 24, 5000, 48


class Documents(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, TOPICS, n)
        base = rng.integers(0, VOCAB // 2, (n, LENGTH))
        own = self.y[:, None] * 100 + rng.integers(0, 150, (n, LENGTH))
        self.x = np.where(rng.random((n, LENGTH)) < 0.4, own, base + VOCAB // 2)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        drop = np.random.random(LENGTH) < 0.1
        return np.where(drop, 0, x), self.y[i]


class Classifier(nn.Module):
    def __init__(self, dim=256, hidden=768, depth=3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.token = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.head = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, TOPICS))

    def forward(self, ids):
        return self.head(self.token(self.embed(ids)).amax(1))


def evaluate(model, loader):
    model.eval()
    table = torch.zeros(TOPICS * TOPICS, dtype=torch.long)
    with torch.inference_mode():
        for x, y in loader:
            table += torch.bincount(y * TOPICS + model(x).argmax(1), minlength=TOPICS * TOPICS)
    table = table.view(TOPICS, TOPICS)
    return (table.diag().sum() / table.sum()).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)
    train = DataLoader(
        Documents(12_000, 0), batch_size=32, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True
    )
    test = DataLoader(Documents(600, 1), batch_size=100)
    model = Classifier()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    times, total = [], 0.0
    it = iter(train)
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        try:
            x, y = next(it)
        except StopIteration:
            it = iter(train)
            x, y = next(it)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if len(times) % 25 == 24:
            print(f"batch {len(times) + 1} mean loss {total / 25:.3f}")
            total = 0.0
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("test accuracy", round(evaluate(model, test), 3))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
