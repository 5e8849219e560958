"""Probability of default for consumer loans: wide table, entity embeddings, MLP."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CARDINALITIES = [12, 51, 7, 4, 190, 33]
NUMERIC = 48


def load_applications(rows, seed=7):
    """Stands in for the warehouse extract; already imputed and scaled."""
    rng = np.random.default_rng(seed)
    numeric = rng.normal(size=(rows, NUMERIC)).astype(np.float32)
    cats = np.stack([rng.integers(0, c, rows) for c in CARDINALITIES], axis=1)
    score = numeric[:, :6].sum(1) * 0.4 + (cats[:, 2] == 3) * 1.2 - 1.5
    default = (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(np.float32)
    return torch.from_numpy(numeric), torch.from_numpy(cats), torch.from_numpy(default)


class DefaultModel(nn.Module):
    def __init__(self, width=256, dropout=0.1):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(c, min(24, (c + 1) // 2)) for c in CARDINALITIES)
        inputs = NUMERIC + sum(e.embedding_dim for e in self.embeds)
        self.norm = nn.BatchNorm1d(NUMERIC)
        self.body = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, 1),
        )

    def forward(self, numeric, cats):
        parts = [self.norm(numeric)]
        parts += [e(cats[:, i]) for i, e in enumerate(self.embeds)]
        return self.body(torch.cat(parts, dim=1)).squeeze(1)


class ShuffledTable:
    """One epoch = one permutation of the rows, cut into batches."""

    def __init__(self, tensors, batch_size):
        self.tensors, self.batch_size = tensors, batch_size

    def __iter__(self):
        order = torch.randperm(len(self.tensors[0]))
        for idx in order.split(self.batch_size):
            if len(idx) == self.batch_size:
                yield [t[idx] for t in self.tensors]


def make_loader(tensors, batch_size, better):
    if better:
        return ShuffledTable(tensors, batch_size)
    dataset = TensorDataset(*tensors)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)


@torch.no_grad()
def validate(model, tensors):
    model.eval()
    numeric, cats, target = tensors
    prob = torch.sigmoid(model(numeric, cats))
    model.train()
    brier = (prob - target).square().mean()
    return brier.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--batch-size", type=int, default=2048)
    args = parser.parse_args()
    torch.manual_seed(0)

    train = load_applications(200_000)
    valid = load_applications(4_000, seed=8)
    model = DefaultModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    loss_fn = nn.BCEWithLogitsLoss()
    loader = make_loader(train, args.batch_size, args.better)

    times, epoch = [], 0
    start = last = time.perf_counter()
    running = 0.0
    while last - start < args.seconds:
        for numeric, cats, target in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_fn(model(numeric, cats), target)
            loss.backward()
            optimizer.step()
            running = 0.98 * running + 0.02 * loss.item()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start > args.seconds:
                break
        epoch += 1
        print(f"epoch {epoch}: loss {running:.4f}  brier {validate(model, valid):.4f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
