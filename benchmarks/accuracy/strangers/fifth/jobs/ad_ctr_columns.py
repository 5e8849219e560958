"""CTR model over numeric campaign columns; every column gets its own token before mixing."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

COLUMNS = [
    f"{kind}_{win}_{agg}"
    for kind in ("imp", "click", "spend", "cart", "order")
    for win in ("1h", "6h", "1d", "7d", "28d")
    for agg in ("sum", "mean", "max", "last")
]
TOKEN = 16


class ColumnTokens(nn.Module):
    """One scale and shift vector for each column, then a GELU."""

    def __init__(self, columns, dim):
        super().__init__()
        self.columns = columns
        self.proj = nn.ModuleDict({c: nn.Linear(1, dim) for c in columns})

    def forward(self, x):
        tokens = []
        for i, c in enumerate(self.columns):
            tokens.append(F.gelu(self.proj[c](x[:, i : i + 1])))
        return torch.cat(tokens, dim=1)


class PackedTokens(nn.Module):
    def __init__(self, columns, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(len(columns), dim).uniform_(-1, 1))
        self.bias = nn.Parameter(torch.empty(len(columns), dim).uniform_(-1, 1))

    def forward(self, x):
        return F.gelu(torch.addcmul(self.bias, x.unsqueeze(-1), self.weight)).flatten(1)


class CTR(nn.Module):
    def __init__(self, tokens, hidden=320):
        super().__init__()
        self.tokens = tokens
        self.deep = nn.Sequential(
            nn.Linear(len(COLUMNS) * TOKEN, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.deep(self.tokens(x)).squeeze(1)


class Stream:
    def __init__(self, rows=60_000, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(rows, len(COLUMNS), generator=g)
        w = torch.randn(len(COLUMNS), generator=g) / 6
        self.y = (torch.rand(rows, generator=g) < torch.sigmoid(self.x @ w - 2)).float()

    def __call__(self, batch):
        i = torch.randint(0, len(self.x) - batch, (1,)).item()
        return self.x[i : i + batch], self.y[i : i + batch]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default="")
    args = ap.parse_args()

    torch.manual_seed(0)
    stream = Stream()
    kind = PackedTokens if args.better else ColumnTokens
    model = CTR(kind(COLUMNS, TOKEN))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, fused=True)
    times = []
    running = 0.0
    t0 = time.perf_counter()
    while True:
        t = time.perf_counter()
        x, y = stream(384)
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.98 * running + 0.02 * loss.item()
        now = time.perf_counter()
        times.append(now - t)
        if len(times) % 100 == 0:
            print(f"{len(times):6d} logloss {running:.4f}")
        if now - t0 > args.seconds:
            break

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
