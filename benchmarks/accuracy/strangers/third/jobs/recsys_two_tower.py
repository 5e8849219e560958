"""Two-tower retrieval model on synthetic click logs."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

N_USERS, N_ITEMS, DIM = 60_000, 120_000, 32


class Tower(nn.Module):
    def __init__(self, n, dim, hidden, sparse):
        super().__init__()
        self.emb = nn.Embedding(n, dim, sparse=sparse)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 64))

    def forward(self, ids):
        return F.normalize(self.mlp(self.emb(ids)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.user = Tower(N_USERS, DIM, 256, sparse)
        self.item = Tower(N_ITEMS, DIM, 256, sparse)
        self.log_temp = nn.Parameter(torch.tensor(2.0))

    def forward(self, u, i):
        return self.user(u) @ self.item(i).T * self.log_temp.exp()


def make_log(n=400_000):
    g = torch.Generator().manual_seed(0)
    users = torch.randint(0, N_USERS, (n,), generator=g)
    items = (torch.rand(n, generator=g) ** 3 * N_ITEMS).long()
    return users, items


def build_optimizers(model, better):
    if not better:
        return [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)]
    tables = [model.user.emb.weight, model.item.emb.weight]
    ids = {id(t) for t in tables}
    rest = [p for p in model.parameters() if id(p) not in ids]
    return [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(rest, lr=1e-3, fused=True)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    model = TwoTower(sparse=args.better)
    opts = build_optimizers(model, args.better)
    users, items = make_log()

    times, step, running = [], 0, 0.0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        idx = torch.randint(0, len(users), (args.batch,))
        logits = model(users[idx], items[idx])
        loss = F.cross_entropy(logits, torch.arange(len(idx)))
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        running = 0.98 * running + 0.02 * loss.item()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {running:.4f}")
        times.append(time.perf_counter() - t0)

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
