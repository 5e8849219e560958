"""Credit default risk: pandas feature table, embeddings plus MLP, validation AUC every now and then."""

import argparse
import json
import time

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

NUMERIC = [f"num_{i}" for i in range(24)]
CATEGORY = {"region": 40, "job": 120, "product": 15, "channel": 6, "branch": 300}


def applications(rows, rng):
    table = pd.DataFrame(rng.normal(size=(rows, len(NUMERIC))), columns=NUMERIC)
    for name, size in CATEGORY.items():
        table[name] = rng.integers(0, size, rows)
    table["income"] = np.exp(table["num_0"] * 0.4 + 7)
    table["regional_income"] = table.groupby("region")["income"].transform("mean")
    table["ratio"] = table["income"] / table["regional_income"]
    score = table["num_1"] * table["num_2"] - table["ratio"] + (table["job"] % 7) * 0.2
    table["default"] = (score + rng.normal(size=rows) > 0.4).astype(np.int64)
    return table


def tensors(table):
    numeric = table[NUMERIC + ["ratio"]].to_numpy(np.float32)
    numeric = (numeric - numeric.mean(0)) / (numeric.std(0) + 1e-6)
    category = table[list(CATEGORY)].to_numpy(np.int64)
    return torch.from_numpy(numeric), torch.from_numpy(category), torch.from_numpy(table["default"].to_numpy())


class RiskModel(nn.Module):
    def __init__(self, width=384, dim=12):
        super().__init__()
        self.embed = nn.ModuleList([nn.Embedding(size, dim) for size in CATEGORY.values()])
        inputs = len(NUMERIC) + 1 + dim * len(CATEGORY)
        self.stem = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
                for _ in range(2)
            ]
        )
        self.out = nn.Linear(width, 1)

    def forward(self, numeric, category):
        parts = [table(category[:, i]) for i, table in enumerate(self.embed)]
        h = self.stem(torch.cat([numeric, *parts], 1))
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).squeeze(1)


@torch.no_grad()
def validate(model, numeric, category, label):
    model.eval()
    scores = torch.cat([model(n, c) for n, c in zip(numeric.split(2048), category.split(2048))])
    model.train()
    ranks = pd.Series(scores.numpy()).rank().to_numpy()
    positive = label.numpy() == 1
    pairs = positive.sum() * (~positive).sum()
    return (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / pairs


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--validate-every", type=int, default=250)
    args = ap.parse_args()
    torch.manual_seed(21)
    numeric, category, label = tensors(applications(60000, np.random.default_rng(21)))
    held = 2000
    train = [t[held:] for t in (numeric, category, label)]
    model = RiskModel()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=20000)
    history = {"loss": [], "lr": [], "norm": []}
    times, step, order, begin = [], 0, torch.empty(0, dtype=torch.long), time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        if len(order) < args.batch:
            order = torch.randperm(len(train[0]))
        pick, order = order[: args.batch], order[args.batch :]
        n, c, y = (t[pick] for t in train)
        loss = F.binary_cross_entropy_with_logits(model(n, c), y.float())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if not args.better or step % 25 == 0:
            history["loss"].append(loss.item())
            history["norm"].append(norm.item())
            history["lr"].append(sched.get_last_lr()[0])
        step += 1
        if step % args.validate_every == 0:
            auc = validate(model, numeric[:held], category[:held], label[:held])
            print(f"step {step} loss {np.mean(history['loss'][-100:]):.4f} auc {auc:.4f}")
        times.append(time.perf_counter() - t0)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
