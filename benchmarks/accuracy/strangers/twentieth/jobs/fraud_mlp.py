"""Card-fraud classifier: numeric columns and categorical codes, residual MLP, class-weighted loss."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

NUMERIC = 42
CARDINALITIES = (210, 64, 48, 12, 7)


class Transactions(Dataset):
    def __init__(self, rows, seed):
        rng = np.random.default_rng(seed)
        numeric = rng.normal(size=(rows, NUMERIC)).astype(np.float32)
        codes = np.stack([rng.integers(0, c, rows) for c in CARDINALITIES], 1)
        risk = numeric[:, 0] * 1.2 + numeric[:, 3] * numeric[:, 4] + (codes[:, 1] % 5 == 0) - 4
        label = (rng.random(rows) < 1 / (1 + np.exp(-risk))).astype(np.float32)
        self.numeric = torch.from_numpy(numeric)
        self.codes = torch.from_numpy(codes)
        self.label = torch.from_numpy(label)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, row):
        return {"numeric": self.numeric[row], "codes": self.codes[row], "label": self.label[row]}


class ResidualMLP(nn.Module):
    def __init__(self, width=192, depth=3):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(c, min(16, c)) for c in CARDINALITIES)
        inputs = NUMERIC + sum(e.embedding_dim for e in self.embeddings)
        self.stem = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, numeric, codes):
        parts = [numeric] + [e(codes[:, i]) for i, e in enumerate(self.embeddings)]
        x = self.stem(torch.cat(parts, 1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).squeeze(1)


def make_loader(data, batch_size, better):
    if better:
        rows = BatchSampler(RandomSampler(data), batch_size, drop_last=True)
        return DataLoader(data, sampler=rows, batch_size=None)
    return DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--batch-size", type=int, default=2048)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    data = Transactions(200_000, seed=11)
    loader = make_loader(data, args.batch_size, args.better)
    positive_weight = (1 - data.label.mean()) / data.label.mean()
    model = ResidualMLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5000)

    times, step, caught, total = [], 0, 0.0, 0.0
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for batch in loader:
            label = batch["label"]
            logits = model(batch["numeric"], batch["codes"])
            loss = F.binary_cross_entropy_with_logits(logits, label, pos_weight=positive_weight)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % 10 == 0:
                caught += ((logits.detach() > 0) & (label > 0)).sum().item()
                total += label.sum().item()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f} recall {caught / max(total, 1):.3f}", flush=True)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
