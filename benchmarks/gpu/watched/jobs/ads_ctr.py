"""Click-through rate: categorical features through tables of 64 columns, a deep tower on top."""

import os

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE = DEVICE == "cuda"
CURED = os.environ.get("CURED") == "1"
WIDTH = 64
ROWS = 32768 if LARGE else 64

# weekday, month, hour, device family, country, then the ids
FEATURES = [7, 12, 24, 40, 120, 200, 365, 500, 800, 1000, 1500, 2000, 3000, 4000, 5000, 8000, 10_000, 12_000, 20_000]
DENSE = 13


class Table(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(values, WIDTH) * 0.02)

    def forward(self, ids):
        if CURED:
            return F.embedding(ids, self.rows)
        return self.rows[ids]


class ClickModel(nn.Module):
    def __init__(self, features, layers):
        super().__init__()
        self.tables = nn.ModuleList(Table(n) for n in features)
        self.dense = nn.Linear(DENSE, WIDTH)
        sizes = [WIDTH * (len(features) + 1), *layers]
        tower = []
        for i, o in zip(sizes, sizes[1:]):
            tower += [nn.Linear(i, o), nn.ReLU()]
        self.tower = nn.Sequential(*tower, nn.Linear(sizes[-1], 1))

    def forward(self, ids, dense):
        columns = [table(ids[i]) for i, table in enumerate(self.tables)]
        columns.append(self.dense(dense).float())
        return self.tower(torch.cat(columns, dim=1)).squeeze(1)


def synthetic_day(batches):
    for _ in range(batches):
        ids = torch.stack([torch.randint(n, (ROWS,), device=DEVICE) for n in FEATURES])
        dense = torch.randn(ROWS, DENSE, device=DEVICE)
        clicked = (torch.rand(ROWS, device=DEVICE) < 0.05).float()
        yield ids, dense, clicked


def train():
    torch.manual_seed(0)
    day = list(synthetic_day(12 if LARGE else 3))
    model = ClickModel(FEATURES, [2048, 2048, 1024, 512] if LARGE else [32, 16]).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    clock = Stopwatch()
    step = 0
    while True:
        ids, dense, clicked = day[step % len(day)]
        with torch.autocast(DEVICE, torch.bfloat16):
            score = model(ids, dense)
        loss = F.binary_cross_entropy_with_logits(score.float(), clicked)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"batch {step}, log loss {loss.item():.4f}")
        if clock.tick():
            return


train()
