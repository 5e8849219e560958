"""Loan-default risk on tabular records: one table for all categorical columns, residual MLP, periodic validation."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CARDS = [12, 50, 7, 31, 400, 5, 18, 90, 3, 60]
NUMERIC = 36


class LoanTable:
    def __init__(self, rows=60000, seed=0):
        g = torch.Generator().manual_seed(seed)
        offsets = torch.tensor([0] + CARDS[:-1]).cumsum(0)
        cats = torch.stack([torch.randint(0, c, (rows,), generator=g) for c in CARDS], 1)
        self.cats = cats + offsets
        self.nums = torch.randn(rows, NUMERIC, generator=g)
        self.target = (self.nums[:, :4].sum(1) + cats[:, 2] - 4 + torch.randn(rows, generator=g) > 1).float()
        self.train_rows = rows - 4096

    def epochs(self, size):
        while True:
            order = torch.randperm(self.train_rows)
            for i in range(0, self.train_rows - size + 1, size):
                idx = order[i : i + size]
                yield self.nums[idx], self.cats[idx], self.target[idx]

    def validation(self):
        s = slice(self.train_rows, None)
        return self.nums[s], self.cats[s], self.target[s]


class ResidualLayer(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, inner)
        self.down = nn.Linear(inner, dim)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x)), inplace=True))


class RiskNet(nn.Module):
    def __init__(self, dim=256, inner=1024, depth=3):
        super().__init__()
        self.table = nn.Embedding(sum(CARDS), 12)
        self.inp = nn.Linear(NUMERIC + 12 * len(CARDS), dim)
        self.layers = nn.Sequential(*[ResidualLayer(dim, inner) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, nums, cats):
        x = torch.cat([nums, self.table(cats).flatten(1)], 1)
        return self.out(self.layers(self.inp(x))).squeeze(1)


def auc(score, target):
    rank = score.argsort().argsort().float() + 1
    pos = target.sum()
    return (((rank * target).sum() - pos * (pos + 1) / 2) / (pos * (len(target) - pos))).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    table = LoanTable()
    model = RiskNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=200000)
    rows = table.epochs(1024)

    times, step, mean_loss = [], 0, 0.0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        nums, cats, target = next(rows)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(nums, cats)
        loss = F.binary_cross_entropy_with_logits(logits.float(), target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        mean_loss += loss.item()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {mean_loss / 50:.4f}", flush=True)
            mean_loss = 0.0
        if step % 250 == 0:
            model.eval()
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                nums, cats, target = table.validation()
                print(f"step {step} validation auc {auc(model(nums, cats).float(), target):.4f}", flush=True)
            model.train()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
