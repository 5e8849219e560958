"""Matrix factorisation with BPR loss on made-up shop clicks."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

N_USERS = 120_000
N_ITEMS = 60_000
DIM = 32
BATCH = 8192


class Clicks:
    def __init__(self, n=600_000, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.users = torch.randint(0, N_USERS, (n,), generator=g)
        pop = torch.rand(n, generator=g) ** 2.5
        self.items = (pop * N_ITEMS).long().clamp_(max=N_ITEMS - 1)
        self.gen = g

    def batch(self, size):
        idx = torch.randint(0, len(self.users), (size,), generator=self.gen)
        neg = torch.randint(0, N_ITEMS, (size,), generator=self.gen)
        return self.users[idx], self.items[idx], neg


class BPR(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.user = nn.Embedding(N_USERS, DIM, sparse=sparse)
        self.item = nn.Embedding(N_ITEMS, DIM, sparse=sparse)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)

    def forward(self, u, i, j):
        e = self.user(u)
        pos = (e * self.item(i)).sum(-1)
        neg = (e * self.item(j)).sum(-1)
        return pos - neg


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    data = Clicks()
    model = BPR(sparse=args.better)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)

    times = []
    running = 0.0
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        s = time.perf_counter()
        u, i, j = data.batch(BATCH)
        loss = -F.logsigmoid(model(u, i, j)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = 0.98 * running + 0.02 * loss.item()
        times.append(time.perf_counter() - s)
        if len(times) % 50 == 0:
            print(f"[{len(times):5d}] bpr {running:.4f}")

    with torch.inference_mode():
        u, i, j = data.batch(20_000)
        auc = (model(u, i, j) > 0).float().mean().item()
    print(f"pairwise auc {auc:.3f} after {len(times)} batches")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
