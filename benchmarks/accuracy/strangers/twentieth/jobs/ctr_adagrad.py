"""Click-through-rate model (wide hashed embeddings + MLP) trained with Adagrad on an ad-impression log."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

FIELD_SIZES = (120_000, 90_000, 60_000, 24_000, 5_000, 800, 60, 12)
DENSE, DIM = 13, 16


class ImpressionLog:
    """In-memory log; yields shuffled batches of (dense, categorical, clicked)."""

    def __init__(self, rows, seed):
        g = torch.Generator().manual_seed(seed)
        self.dense = torch.randn(rows, DENSE, generator=g)
        u = torch.rand(rows, len(FIELD_SIZES), generator=g).pow(3)
        self.cats = (u * torch.tensor(FIELD_SIZES)).long()
        score = self.dense[:, 0] + (self.cats[:, 0] % 7 - 3) * 0.4 - 1.5
        self.clicked = (torch.rand(rows, generator=g) < score.sigmoid()).float()
        self.generator = g

    def batches(self, size):
        order = torch.randperm(len(self.clicked), generator=self.generator)
        for rows in order.split(size):
            yield self.dense[rows], self.cats[rows], self.clicked[rows]


class DeepCTR(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.table = nn.Embedding(sum(FIELD_SIZES), DIM, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.02)
        offsets = torch.tensor((0,) + FIELD_SIZES[:-1]).cumsum(0)
        self.register_buffer("offsets", offsets)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, DIM))
        pairs = (len(FIELD_SIZES) + 1) * len(FIELD_SIZES) // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + DIM, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )
        upper = torch.triu_indices(len(FIELD_SIZES) + 1, len(FIELD_SIZES) + 1, 1)
        self.register_buffer("upper", upper[0] * (len(FIELD_SIZES) + 1) + upper[1])

    def forward(self, dense, cats):
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), self.table(cats + self.offsets)], 1)
        crossed = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        crossed = crossed.index_select(1, self.upper)
        return self.top(torch.cat([crossed, bottom], 1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--batch-size", type=int, default=2048)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    log = ImpressionLog(300_000, seed=5)
    model = DeepCTR(sparse=args.better)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)

    times, step = [], 0
    loss_ema = None
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for dense, cats, clicked in log.batches(args.batch_size):
            logits = model(dense, cats)
            loss = F.binary_cross_entropy_with_logits(logits, clicked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.item()
            loss_ema = value if loss_ema is None else 0.98 * loss_ema + 0.02 * value
            step += 1
            if step % 50 == 0:
                print(f"step {step} logloss {loss_ema:.4f}", flush=True)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
