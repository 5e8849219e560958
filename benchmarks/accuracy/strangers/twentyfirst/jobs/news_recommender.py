"""Click model for a news site: reader and article embeddings, history pooling, small MLP."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

READERS, ARTICLES, HISTORY, DIM = 450_000, 80_000, 12, 32


class ClickLog:
    """Popularity-skewed impressions, drawn in batches."""

    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)

    def skewed(self, n, shape):
        u = torch.rand(shape, generator=self.g)
        return (n * u.pow(2.5)).long().clamp_(max=n - 1)

    def batch(self, size):
        reader = torch.randint(0, READERS, (size,), generator=self.g)
        history = self.skewed(ARTICLES, (size, HISTORY))
        article = self.skewed(ARTICLES, (size,))
        hour = torch.rand(size, 1, generator=self.g)
        score = ((reader + article) % 5 == 0).float() * 2 - 1.5 + hour[:, 0]
        clicked = (torch.rand(size, generator=self.g) < score.sigmoid()).float()
        return reader, history, article, hour, clicked


class ClickModel(nn.Module):
    def __init__(self, better=False, width=256):
        super().__init__()
        self.reader = nn.Embedding(READERS, DIM, sparse=better)
        self.article = nn.Embedding(ARTICLES, DIM, sparse=better)
        self.mlp = nn.Sequential(
            nn.Linear(4 * DIM + 1, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        for table in (self.reader, self.article):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, reader, history, article, hour):
        r = self.reader(reader)
        a = self.article(article)
        h = self.article(history).mean(1)
        x = torch.cat([r, a, h, h * a, hour], dim=1)
        return self.mlp(x).squeeze(1)


class RunningCalibration:
    """Predicted over observed click rate, decayed."""

    def __init__(self, decay=0.99):
        self.decay, self.predicted, self.observed = decay, 0.0, 0.0

    def update(self, logits, clicked):
        d = self.decay
        self.predicted = d * self.predicted + (1 - d) * logits.sigmoid().mean().item()
        self.observed = d * self.observed + (1 - d) * clicked.mean().item()

    @property
    def ratio(self):
        return self.predicted / max(self.observed, 1e-9)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--batch-size", type=int, default=3072)
    args = parser.parse_args()
    torch.manual_seed(0)

    log = ClickLog()
    model = ClickModel(better=args.better)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    calibration = RunningCalibration()

    times, step = [], 0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        reader, history, article, hour, clicked = log.batch(args.batch_size)
        logits = model(reader, history, article, hour)
        loss = F.binary_cross_entropy_with_logits(logits, clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        calibration.update(logits.detach(), clicked)
        step += 1
        times.append(time.perf_counter() - began)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f} calibration {calibration.ratio:.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
